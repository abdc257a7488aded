//! Packet arena, event queue and network elements under any clock.
