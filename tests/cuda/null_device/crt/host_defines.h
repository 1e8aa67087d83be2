/* The one header that CUDA's headers include and that the wheels do not bring: its macros, as a C compiler needs them. */
#pragma once
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDA_CB
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __cluster_dims__(...)
#define __cudart_builtin__
#define __device__
#define __device_builtin__
#define __device_builtin_surface_type__
#define __device_builtin_texture_type__
#define __dv(value)
#define __forceinline__ __inline
#define __global__
#define __host__
#define __inline__ __inline
#define __no_return__
#define __noinline__
#define __specialization_static
