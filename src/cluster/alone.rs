//! One process that has all shards.

use super::Cluster;
use crate::error::{Error, Result};

/// A cluster of one rank.
#[derive(Debug, Default)]
pub struct Alone;

impl Cluster for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn num_ranks(&self) -> usize {
        1
    }

    fn name(&self) -> String {
        "one process".into()
    }

    fn barrier(&mut self) -> Result<()> {
        Ok(())
    }

    fn broadcast(&mut self, _root: usize, _bytes: &mut Vec<u8>) -> Result<()> {
        Ok(())
    }

    fn gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(vec![bytes.to_vec()])
    }

    fn exchange_f32(&mut self, send: &[f32], _: &[usize], receive: &mut [f32], _: &[usize]) -> Result<()> {
        receive.copy_from_slice(send);
        Ok(())
    }

    fn exchange_f64(&mut self, send: &[f64], _: &[usize], receive: &mut [f64], _: &[usize]) -> Result<()> {
        receive.copy_from_slice(send);
        Ok(())
    }

    fn spread_f32(&mut self, _: &mut [f32], _: &[usize]) -> Result<()> {
        Ok(())
    }

    fn spread_f64(&mut self, _: &mut [f64], _: &[usize]) -> Result<()> {
        Ok(())
    }

    fn shrink(&mut self) -> Result<Vec<usize>> {
        Err(Error::internal("one process alone cannot lose a rank"))
    }

    fn abort(&mut self, _message: &str) {}
}
