//! Several processes that learn one model.
//!
//! A *rank* is one of the processes that a launcher (`mpiexec`, `srun`) started together. [`mpi`] lets them speak to
//! each other through whatever MPI library the launcher belongs to.

#[cfg(all(feature = "mpi", unix))]
pub mod mpi;
