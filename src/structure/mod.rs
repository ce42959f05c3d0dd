//! The circuit structures people use.
