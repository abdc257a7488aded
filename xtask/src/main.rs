//! The project's own tools: `cargo xtask tidy`, `cargo xtask bench`.

fn main() {}
