//! The optimiser: which links carry which object.
