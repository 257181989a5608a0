/* The door to CUDA devices: their memory and time, attention on them, and the
 * operations of a decode step that kernels/backend.h lacks.  Files outside
 * kernels/ include no other file of kernels/cuda/. */
#ifndef KV_DEVICE_H
#define KV_DEVICE_H

#include "kernels/cuda/gpu_attend.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/step.h"
#include "kernels/cuda/unfused.h"

#endif
