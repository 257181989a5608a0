s,#include "(lib|kernels)/(.*/)?(.*)",#include <kvtools/\3>,
