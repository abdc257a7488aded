//! Real-time emulator: sites in network namespaces around one fabric.
