//! What a person sees: the table on the terminal, and the report as one HTML file.

pub mod html;
mod svg;
pub mod table;
