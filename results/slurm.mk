# make SUBMIT=slurm: every step of a page is a job of Slurm, which waits for the
# jobs of what it is made of; rows of a group are an array of SHARDS tasks.
# What is there is not made again; a task that is preempted keeps its rows.
# sbatch's own variables choose partition, time and processors:
#
#   export SBATCH_PARTITION=cpu SBATCH_TIMELIMIT=4:00:00
#   make -C results/kivi table3 SUBMIT=slurm SHARDS=8
SHARDS ?= 4

ifeq ($(SUBMIT),slurm)
JOBS := $(WORK)/jobs
$(shell mkdir -p $(JOBS) && rm -f $(JOBS)/*.id)
SHELL := $(dir $(lastword $(MAKEFILE_LIST)))../scripts/slurm/submit
.SHELLFLAGS = $(JOBS) $(SHARDS) "$@" "$^ $|" -c
else ifneq ($(SUBMIT),)
$(error SUBMIT is $(SUBMIT), expected slurm)
endif
