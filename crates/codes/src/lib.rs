//! GF(2^8) kernels and network-code algebra.
