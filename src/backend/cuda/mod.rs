//! A circuit on a GPU.
mod descriptors;
mod program;
