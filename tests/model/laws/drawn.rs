//! The laws on random circuits, and on every structure at any size.

use super::em::{a_whole_step_of_anemone_is_em, anemone_maximises, full_batch_em_climbs, kl_is_linear};
use super::extremes::*;
use super::probability::{flows_are_slopes, marginals_are_sums, worlds_sum_to_one};
use super::specification::agrees_with_the_specification;
use super::*;

/// Draws of a circuit, latents and values together, that are still listed.
pub const MOST_DRAWS: f64 = 200_000.0;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_circuits_are_the_specification(seed in 0u64..1_000_000) {
        let case = random::categorical(seed);
        agrees_with_the_specification(&case);
        worlds_sum_to_one(&case);
        marginals_are_sums(&case, seed);
    }

    #[test]
    fn random_circuits_with_extreme_parameters_are_the_specification(seed in 0u64..1_000_000, decades in 1u32..44) {
        extremes_agree(&random::categorical(seed), seed, f64::from(decades));
    }

    #[test]
    fn random_circuits_have_slopes_for_flows(seed in 0u64..1_000_000) {
        flows_are_slopes(&random::categorical(seed));
    }

    #[test]
    fn random_circuits_climb_under_full_batch_em(seed in 0u64..1_000_000, rows in 1usize..31) {
        full_batch_em_climbs(&random::categorical(seed), rows);
    }

    #[test]
    fn random_circuits_get_what_anemone_promises(seed in 0u64..1_000_000) {
        anemone_maximises(&random::categorical(seed), seed);
    }

    #[test]
    fn random_circuits_tend_to_em_and_have_a_linear_kl_divergence(seed in 0u64..1_000_000) {
        let case = random::categorical(seed);
        a_whole_step_of_anemone_is_em(&case, seed);
        prop_assume!(case.num_draws() < MOST_DRAWS);
        kl_is_linear(&case, seed);
    }

    #[test]
    fn random_circuits_with_densities_are_the_specification(seed in 0u64..1_000_000) {
        let case = random::with_densities(seed);
        agrees_with_the_specification(&case);
        a_whole_step_of_anemone_is_em(&case, seed);
    }

    #[test]
    fn structures_of_any_size_are_the_specification(drawn in drawing::drawn(6, 5, 4)) {
        let case = drawn.case();
        agrees_with_the_specification(&case);
        prop_assert!(case.all_worlds().is_some(), "{}: too many worlds to list", case.name);
        worlds_sum_to_one(&case);
        marginals_are_sums(&case, drawn.seed);
    }

    #[test]
    fn structures_of_any_size_climb_under_full_batch_em(drawn in drawing::drawn(6, 5, 4), rows in 1usize..31) {
        full_batch_em_climbs(&drawn.case(), rows);
    }

    #[test]
    fn structures_of_any_size_get_what_anemone_promises(drawn in drawing::drawn(6, 5, 4)) {
        let case = drawn.case();
        anemone_maximises(&case, drawn.seed);
        a_whole_step_of_anemone_is_em(&case, drawn.seed);
    }

    #[test]
    fn structures_of_any_size_have_a_linear_kl_divergence(drawn in drawing::drawn(4, 3, 3)) {
        let case = drawn.case();
        prop_assume!(case.num_draws() < MOST_DRAWS);
        kl_is_linear(&case, drawn.seed);
    }
}
