// What a new compiler's core would take from new C and C++ libraries, so that a wheel serves older ones: manylinux_2_28.
// With it the core needs glibc 2.27 and GLIBCXX_3.4.21; `auditwheel show` says so of the wheel. Link with
// -Wl,--wrap=exp2,--wrap=log2.
#include <new>

extern "C" {
#if defined(__x86_64__) && defined(__GLIBC__)
// glibc 2.29 has further versions of these two, which differ in errno alone.
double exp2_of_old(double x);
double log2_of_old(double x);
__asm__(".symver exp2_of_old, exp2@GLIBC_2.2.5");
__asm__(".symver log2_of_old, log2@GLIBC_2.2.5");
#else
double __real_exp2(double x);
double __real_log2(double x);
#define exp2_of_old __real_exp2
#define log2_of_old __real_log2
#endif
__attribute__((visibility("hidden"))) double __wrap_exp2(double x) { return exp2_of_old(x); }
__attribute__((visibility("hidden"))) double __wrap_log2(double x) { return log2_of_old(x); }

// glibc 2.32: libstdc++ counts shared pointers without atomics where it says yes.
__attribute__((visibility("hidden"))) extern char __libc_single_threaded;
char __libc_single_threaded = 0;
}

// GLIBCXX_3.4.29: std::__throw_bad_array_new_length.
[[noreturn]] __attribute__((visibility("hidden"))) void throw_bad_length() __asm__("_ZSt28__throw_bad_array_new_lengthv");
void throw_bad_length() { throw std::bad_array_new_length(); }
