//! Real sockets: TCP and TLS.
