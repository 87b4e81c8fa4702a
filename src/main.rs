//! TokenTriage: an LLM gateway that governs.

fn main() {}
