//! Inputs: values, flows of tables and densities, their updates; gradient steps; element-wise kernels.

use super::device::*;
use super::scaled::{self, NO_LOSS, Scale, ZERO};

/// Standard deviation of the logistic distribution of scale 1.
pub const UNIT_STD: f64 = std::f64::consts::PI / 1.732_050_807_568_877_2;

fn log_sigmoid(z: f64) -> f64 {
    if z >= 0.0 { -(-z).exp().ln_1p() } else { z - z.exp().ln_1p() }
}

/// log p of a density, as src/circuit/distribution says.
fn log_prob(p: &ParamDesc, a: f32, b: f32, cell: u32) -> f64 {
    let (a, b) = (f64::from(a), f64::from(b));
    if p.kind == GAUSSIAN {
        let z = (f64::from(f32::from_bits(cell)) - a) / b;
        return -0.5 * (z * z + std::f64::consts::TAU.ln()) - b.ln();
    }
    let value = f64::from(cell);
    let z = |edge: f64| (p.origin + edge * p.width - a) / b;
    let log = match (cell == 0, cell == p.cats as u32 - 1) {
        (true, _) => log_sigmoid(z(1.0)),
        (_, true) => log_sigmoid(-z(value)),
        _ => log_sigmoid(z(value + 1.0)) + log_sigmoid(-z(value)) + (-(-p.width / b).exp_m1()).ln(),
    };
    log.max(-1000.0)
}

/// Blocks of all kinds, their parameters and a batch.
pub struct Inputs {
    rows: usize,
    capacity: usize,
    pub params: Vec<ParamDesc>,
    pub theta: Vec<f32>,
    num_stats: usize,
    num_rows: usize,
    cells: Vec<u32>,
    uses: Vec<UseDesc>,
    flows: Slab,
}

/// Two tables, two Gaussians, two discrete logistics; the first of each is used twice.
pub fn inputs(seed: u64, rows: usize, typical: bool) -> Inputs {
    let mut rng = Rng::new(seed);
    let capacity = rows + 5;
    let mut it = Inputs {
        rows,
        capacity,
        params: Vec::new(),
        theta: Vec::new(),
        num_stats: 0,
        num_rows: 0,
        cells: Vec::new(),
        uses: Vec::new(),
        flows: Slab::new(capacity),
    };
    let sizes = if typical { [128, 256, 64, 128, 64, 128] } else { [37, 130, 5, 70, 9, 66] };
    let kinds =
        [(TABLE, 11), (TABLE, 70), (GAUSSIAN, 2), (GAUSSIAN, 2), (DISCRETE_LOGISTIC, 2), (DISCRETE_LOGISTIC, 2)];
    let blocks = kinds.into_iter().zip(sizes).map(|((kind, slots), units)| (kind, units, slots));
    let (mut starts_at, mut partial_at) = (0, 0);
    for (i, (kind, units, slots)) in blocks.enumerate() {
        let ld = usize::next_multiple_of(units, 8);
        let stats = if kind == TABLE { slots } else { 3 };
        let num_uses = if i % 2 == 0 { 2 } else { 1 };
        let p = ParamDesc {
            theta_at: it.theta.len() as i64,
            stat_at: it.num_stats as i64,
            row_at: it.num_rows as i64,
            partial_at: partial_at as i64,
            starts_at: starts_at as i64,
            kind,
            units: units as i32,
            slots: slots as i32,
            ld: ld as i32,
            first_use: it.uses.len() as i32,
            num_uses,
            origin: if kind == GAUSSIAN { 0.5 } else { -1.0 },
            width: 2.0 / 16.0,
            min_std: 0.05,
            cats: 16,
            pad: 0,
        };
        for slot in 0..slots {
            for u in 0..ld {
                it.theta.push(match kind {
                    _ if u >= units => f32::NAN,
                    TABLE => rng.positive(),
                    _ if slot == 0 => (rng.uniform() * 2.0 - 1.0) as f32,
                    _ => (rng.uniform() * 0.5 + 0.05) as f32,
                });
            }
        }
        if kind == TABLE {
            for u in 0..units {
                let at = |cat: usize| p.theta_at as usize + cat * ld + u;
                let total: f32 = (0..slots).map(|cat| it.theta[at(cat)]).sum();
                (0..slots).for_each(|cat| it.theta[at(cat)] /= total);
            }
        }
        for _ in 0..num_uses {
            let column = it.cells.len() / capacity;
            for r in 0..capacity {
                it.cells.push(match kind {
                    _ if r >= rows => 0x1234_5678,
                    _ if rng.below(7) == 0 => MISSING,
                    TABLE => rng.below(slots) as u32,
                    GAUSSIAN => ((rng.uniform() * 4.0 - 2.0) as f32).to_bits(),
                    _ => rng.below(16) as u32,
                });
            }
            let flow = it.flows.take(units);
            it.flows.fill(flow, rows, units, |_, _| if rng.below(9) == 0 { 0.0 } else { rng.positive() });
            it.uses.push(UseDesc { flow, cells: column as i32, ..UseDesc::default() });
        }
        it.params.push(p);
        it.num_stats += stats * ld;
        it.num_rows += units;
        starts_at += slots + 1;
        partial_at += 2 * slots.div_ceil(32).max(16) * ld * 4;
    }
    it
}

#[test]
fn inputs_have_the_values_of_their_distributions() {
    values(false);
}

#[test]
fn typical_values() {
    values(true);
}

fn values(typical: bool) {
    let d = super::device_or_return!();
    let it = inputs(5, 45, typical);
    let mut slab = Slab::new(it.capacity);
    let mut theta = it.theta.clone();
    theta[3] = if typical { theta[3] } else { 1e-35 }; // below what is kept beside the others
    let descs: Vec<InputDesc> = (it.params.iter().enumerate())
        .map(|(i, p)| InputDesc {
            value: slab.take(p.units as usize),
            param: i as i32,
            cells: it.uses[p.first_use as usize].cells,
        })
        .collect();
    let (values, scales, theta_dev, cells) = (d.up(&slab.values), d.up(&slab.scales), d.up(&theta), d.up(&it.cells));
    let pass = Pass {
        values: d.at(&values),
        scales: d.at(&scales),
        theta: d.at(&theta_dev),
        cells: d.at(&cells),
        rows: it.rows as i32,
        capacity: it.capacity as i32,
        ..Pass::default()
    };
    let (descs_dev, params_dev) = (d.up(&descs), d.up(&it.params));
    launch!(d, "input_forward", (tiles(it.rows, 8), descs.len()), 256, 0; pass, d.at(&descs_dev), d.at(&params_dev));
    let (got, got_scales) = (d.down(&values), d.down(&scales));
    for desc in &descs {
        let p = &it.params[desc.param as usize];
        for r in 0..it.rows {
            let cell = it.cells[desc.cells as usize * it.capacity + r];
            let got = row(&got, it.capacity, desc.value, r, 0, p.units as usize);
            let scale = got_scales[desc.value.scale as usize * it.capacity + r];
            let at = |slot: usize, u: usize| theta[p.theta_at as usize + slot * p.ld as usize + u];
            if p.kind == TABLE {
                let mut want: Vec<f32> =
                    (0..p.units as usize).map(|u| if cell == MISSING { 1.0 } else { at(cell as usize, u) }).collect();
                let seen = scaled::extremes(&want);
                let s = scaled::standardize_row(&mut want, seen, Scale::UNIT);
                assert!(got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()), "row {r}");
                assert_eq!((scale.exponent, scale.loss), (s.exponent, s.loss), "row {r}");
                continue;
            }
            for (u, &got) in got.iter().enumerate() {
                let want = if cell == MISSING { 0.0 } else { log_prob(p, at(0, u), at(1, u), cell) };
                // Relative to the row's scale, like the CPU; exp turns an absolute error of the logarithm into a
                // relative one.
                let want = (want - scale.exponent as f64 * std::f64::consts::LN_2).exp();
                let want = if want > 7.9e-31 || cell == MISSING { want } else { 0.0 };
                close(got.into(), want, 1e-6, || format!("kind {} [{r}, {u}]", p.kind));
            }
            let top = got.iter().copied().fold(0.0, f32::max);
            assert!(cell == MISSING && scale.exponent == 0 || (0.5 - 1e-6..=1.0).contains(&top), "row {r}: {top}");
            assert!(scale.exponent > ZERO);
            assert_eq!(scale.loss, if got.contains(&0.0) { scale.exponent - 100 } else { NO_LOSS });
        }
    }
}

/// The most units of a block.
fn widest(it: &Inputs) -> usize {
    it.params.iter().map(|p| p.units as usize).max().unwrap()
}

/// Sorts the occurrences of a table as the host does. Starts, items, missing item, pieces by round.
fn sort(
    it: &Inputs,
    table: usize,
    longest: usize,
    scratch: &mut usize,
    items: &mut Vec<u32>,
) -> (Vec<u32>, u32, [Vec<Piece>; 2]) {
    let p = &it.params[table];
    let mut of: Vec<Vec<u32>> = vec![Vec::new(); p.slots as usize + 1];
    for used in &it.uses[p.first_use as usize..][..p.num_uses as usize] {
        for r in 0..it.rows {
            let cell = it.cells[used.cells as usize * it.capacity + r];
            let item = it.flows.row_at(used.flow, r) / 8;
            of[(cell as usize).min(p.slots as usize)].push(item as u32);
        }
    }
    let mut pieces = [Vec::new(), Vec::new()];
    let mut shorten = |list: &[u32], longest: usize, round: usize, items: &mut Vec<u32>| -> Vec<u32> {
        list.chunks(longest)
            .map(|chunk| {
                let out = *scratch / 8;
                *scratch += p.ld as usize;
                pieces[round].push(Piece {
                    first: items.len() as u32,
                    count: chunk.len() as u32,
                    out: out as u32,
                    units: p.units as u32,
                });
                items.extend(chunk);
                out as u32
            })
            .collect()
    };
    for (cat, list) in of.iter_mut().enumerate() {
        let is_missing = cat == p.slots as usize;
        if list.len() > longest || (is_missing && !list.is_empty()) {
            *list = shorten(list, longest, 0, items);
        }
        if is_missing && list.len() > 1 {
            *list = shorten(list, usize::MAX, 1, items);
        }
    }
    let mut starts = vec![items.len() as u32];
    for list in &of[..p.slots as usize] {
        items.extend(list);
        starts.push(items.len() as u32);
    }
    (starts, of[p.slots as usize].first().copied().unwrap_or(MISSING), pieces)
}

#[test]
fn table_flows_and_updates_agree_with_double_precision() {
    tables(false);
}

#[test]
fn typical_tables() {
    tables(true);
}

fn tables(typical: bool) {
    let d = super::device_or_return!();
    for (seed, with_missing, keep) in [(6, true, 0.9f32), (7, false, 1.0), (8, false, 0.0)] {
        let mut it = inputs(seed, 90, typical);
        if !with_missing {
            it.cells.iter_mut().filter(|c| **c == MISSING).for_each(|c| *c = 1);
        }
        let mut items = Vec::new();
        let mut scratch = it.flows.values.len();
        let (mut starts, mut missing, mut pieces) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
        for table in 0..2 {
            // Pieces of 4 stand for the 256 of real batches.
            let (s, m, p) = sort(&it, table, 4, &mut scratch, &mut items);
            starts.extend(s);
            missing.push(m);
            pieces.iter_mut().zip(p).for_each(|(all, p)| all.extend(p));
        }
        it.flows.values.resize(scratch, f32::NAN);
        let tables = &it.params[..2];
        let mut rng = Rng::new(99);
        let before: Vec<f32> = (0..it.num_stats).map(|_| if keep == 0.0 { f32::NAN } else { rng.positive() }).collect();
        let (flows_dev, theta_dev) = (d.up(&it.flows.values), d.up(&it.theta));
        let pass = Pass {
            flows: d.at(&flows_dev),
            theta: d.at(&theta_dev),
            rows: it.rows as i32,
            data_rows: it.rows as i32,
            capacity: it.capacity as i32,
            ..Pass::default()
        };
        let (tables_dev, starts_dev, items_dev, missing_dev) =
            (d.up(tables), d.up(&starts), d.up(&items), d.up(&missing));
        for round in pieces.iter().filter(|round| !round.is_empty()) {
            let pieces_dev = d.up(round);
            launch!(d, "rows_sum", (round.len(), tiles(widest(&it), 128)), 128, 0;
                pass, d.at(&pieces_dev), d.at(&items_dev));
        }
        let single = d.up(&before);
        let double = d.up(&before.iter().map(|&f| if f.is_nan() { 0.5 } else { f64::from(f) }).collect::<Vec<f64>>());
        let sums = d.up(&vec![f64::NAN; 100_000]);
        let grid = (tiles(70, 32), tiles(widest(&it), 128), 2);
        let tables_args = (d.at(&tables_dev), d.at(&starts_dev), d.at(&items_dev), d.at(&missing_dev));
        let (t, s, i, m) = tables_args;
        launch!(d, "table_flows_f32", grid, 128, 0; pass, t, s, i, m, d.at(&single), keep, d.at(&sums));
        launch!(d, "table_flows_f64", grid, 128, 0; pass, t, s, i, m, d.at(&double), keep, 0u64);
        // Without sums and with a keep of 1, only touched categories are looked at: the same result.
        let only_touched = d.up(&before);
        if keep == 1.0 {
            launch!(d, "table_flows_f32", grid, 128, 0; pass, t, s, i, m, d.at(&only_touched), keep, 0u64);
        }
        let (single_host, double_host, sums_host) = (d.down(&single), d.down(&double), d.down(&sums));
        if keep == 1.0 {
            assert!(d.down(&only_touched).iter().zip(&single_host).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
        let num_rows = it.num_rows;
        let mut flow_masses = vec![0.0; num_rows];
        for p in tables {
            for u in 0..p.units as usize {
                let (mut by_cat, mut miss) = (vec![0.0; p.slots as usize], 0.0);
                for used in &it.uses[p.first_use as usize..][..p.num_uses as usize] {
                    for r in 0..it.rows {
                        let f = f64::from(row(&it.flows.values, it.capacity, used.flow, r, u, 1)[0]);
                        match it.cells[used.cells as usize * it.capacity + r] {
                            MISSING => miss += f,
                            cat => by_cat[cat as usize] += f,
                        }
                    }
                }
                for (cat, seen) in by_cat.iter().enumerate() {
                    let at = cat * p.ld as usize + u;
                    let new = seen + miss * f64::from(it.theta[p.theta_at as usize + at]);
                    let stat = p.stat_at as usize + at;
                    let old = if keep == 0.0 { 0.0 } else { f64::from(keep) * f64::from(before[stat]) };
                    close(single_host[stat].into(), old + new, 1e-6, || format!("{seed}: flow [{cat}, {u}]"));
                    let old = if before[stat].is_nan() { 0.5 } else { f64::from(before[stat]) };
                    close(double_host[stat], old + new, 1e-6, || format!("{seed}: flow in f64 [{cat}, {u}]"));
                    flow_masses[p.row_at as usize + u] += f64::from(single_host[stat]);
                }
                let tiles = tiles(p.slots as usize, 32);
                let sum = |which: usize| -> f64 {
                    (0..tiles).map(|t| sums_host[p.partial_at as usize + (2 * t + which) * p.ld as usize + u]).sum()
                };
                close(sum(0), 1.0, 1e-5, || format!("{seed}: Σθ of {u}"));
                close(sum(1), flow_masses[p.row_at as usize + u], 1e-12, || format!("{seed}: ΣF of {u}"));
            }
        }
        update_tables(&d, &it, &pass, &single_host, &flow_masses, seed);
    }
}

fn update_tables(d: &Device, it: &Inputs, pass: &Pass, flows: &[f32], flow_masses: &[f64], seed: u64) {
    let (tables, num_rows) = (&it.params[..2], it.num_rows);
    let tables_dev = d.up(tables);
    let retain: Vec<f64> = (0..num_rows).map(|i| 0.2 * (i % 4) as f64).collect();
    let retain_dev = d.up(&retain);
    let (grid, columns) = ((tiles(70, 32), tiles(widest(it), 128), 2), (tiles(widest(it), 128), 2));
    for double in [false, true] {
        let theta = d.up(&it.theta);
        let pass = Pass { theta: d.at(&theta), ..*pass };
        let single_dev = d.up(flows);
        let double_dev = d.up(&flows.iter().map(|&f| f64::from(f)).collect::<Vec<f64>>());
        let flows_at = if double { d.at(&double_dev) } else { d.at(&single_dev) };
        let name = |kernel: &str| format!("{kernel}_{}", if double { "f64" } else { "f32" });
        let (sums, coefs) = (d.fresh::<f64>(100_000), d.fresh::<f64>(3 * num_rows));
        let (masses, rows) = (d.up(&vec![f64::NAN; num_rows]), d.up(&vec![f64::NAN; num_rows]));
        let update = Update {
            scale: 1.5,
            gain: 1.1,
            epsilon: 1e-2,
            retain: d.at(&retain_dev),
            masses: d.at(&masses),
            source: 1,
            ..Update::default()
        };
        launch!(d, &name("table_sums"), grid, 128, 0; pass, d.at(&tables_dev), flows_at, d.at(&sums));
        launch!(d, "table_masses", columns, 128, 0; d.at(&tables_dev), d.at(&sums), 3.0f64, d.at(&rows));
        launch!(d, "table_coefficients", columns, 128, 0;
            d.at(&tables_dev), d.at(&sums), d.at(&coefs), num_rows as i64, update);
        launch!(d, &name("table_move"), grid, 128, 0; pass, d.at(&tables_dev), flows_at, d.at(&coefs), num_rows as i64);
        let (got, masses, rows) = (d.down(&theta), d.down(&masses), d.down(&rows));
        for p in tables {
            for u in 0..p.units as usize {
                let r = p.row_at as usize + u;
                close(masses[r], flow_masses[r], 1e-12, || format!("{seed}: mass {r}"));
                close(rows[r], 3.0 * flow_masses[r], 1e-12, || format!("{seed}: row mass {r}"));
                let at = |cat: usize| cat * p.ld as usize + u;
                let old = |cat: usize| f64::from(it.theta[p.theta_at as usize + at(cat)]);
                let new =
                    |cat: usize| 1.5 * retain[r] * old(cat) + 1.1 * f64::from(flows[p.stat_at as usize + at(cat)]);
                let len = p.slots as usize;
                let total: f64 = (0..len).map(new).sum();
                for cat in 0..len {
                    let want =
                        if total > 0.0 { (new(cat) + 0.01 * total / len as f64) / (total * 1.01) } else { old(cat) };
                    close(got[p.theta_at as usize + at(cat)].into(), want, 1e-6, || format!("{seed}: θ' [{cat}, {u}]"));
                }
            }
        }
        // Renormalisation divides by the mass of θ.
        let scaled: Vec<f32> = it.theta.iter().map(|t| t * 3.0).collect();
        let theta = d.up(&scaled);
        let pass = Pass { theta: d.at(&theta), ..pass };
        launch!(d, "table_sums_f32", grid, 128, 0; pass, d.at(&tables_dev), 0u64, d.at(&sums));
        let rows = d.up(&vec![1.0; num_rows]);
        launch!(d, "table_masses", columns, 128, 0; d.at(&tables_dev), d.at(&sums), 1.0f64, d.at(&rows));
        launch!(d, "renormalize_tables", grid, 128, 0; d.at(&tables_dev), d.at(&rows), d.at(&theta));
        let got = d.down(&theta);
        for p in tables {
            for u in 0..p.units as usize {
                let sum: f64 = (0..p.slots as usize)
                    .map(|cat| f64::from(got[p.theta_at as usize + cat * p.ld as usize + u]))
                    .sum();
                close(sum, 1.0, 1e-6, || format!("{seed}: a table's column {u}"));
            }
        }
    }
}

#[test]
fn density_flows_and_updates_agree_with_double_precision() {
    densities(false);
}

#[test]
fn typical_densities() {
    densities(true);
}

fn densities(typical: bool) {
    let d = super::device_or_return!();
    let it = inputs(12, 77, typical);
    let densities = &it.params[2..];
    let mut rng = Rng::new(98);
    let before: Vec<f32> = (0..it.num_stats).map(|_| rng.positive()).collect();
    let (flows_dev, theta_dev, cells) = (d.up(&it.flows.values), d.up(&it.theta), d.up(&it.cells));
    let data_rows = it.rows - 1;
    let pass = Pass {
        flows: d.at(&flows_dev),
        theta: d.at(&theta_dev),
        cells: d.at(&cells),
        rows: it.rows as i32,
        data_rows: data_rows as i32,
        capacity: it.capacity as i32,
        ..Pass::default()
    };
    let (densities_dev, uses_dev) = (d.up(densities), d.up(&it.uses));
    let partials = d.fresh::<f64>(200_000);
    let per_split = 30;
    let splits = 2 * tiles(data_rows, per_split);
    launch!(d, "density_flows", (tiles(widest(&it), 64), splits, 4), 64, 0;
        pass, d.at(&densities_dev), d.at(&uses_dev), d.at(&partials), per_split as i32);
    let single = d.up(&before);
    let double = d.up(&before.iter().map(|&f| f64::from(f)).collect::<Vec<f64>>());
    let columns = (tiles(widest(&it), 64), 4);
    launch!(d, "density_apply_f32", columns, 64, 0;
        pass, d.at(&densities_dev), d.at(&partials), d.at(&single), 0.9f32, per_split as i32);
    launch!(d, "density_apply_f64", columns, 64, 0;
        pass, d.at(&densities_dev), d.at(&partials), d.at(&double), 0.9f32, per_split as i32);
    let (single_host, double_host) = (d.down(&single), d.down(&double));
    let expected = |p: &ParamDesc, u: usize| {
        let (a, b) = (
            f64::from(it.theta[p.theta_at as usize + u]),
            f64::from(it.theta[p.theta_at as usize + p.ld as usize + u]),
        );
        if p.kind == GAUSSIAN { (a - p.origin, b) } else { (a, b * UNIT_STD) }
    };
    for p in densities {
        for u in 0..p.units as usize {
            let mut stats = [0.0; 3];
            let (mean, std) = expected(p, u);
            for used in &it.uses[p.first_use as usize..][..p.num_uses as usize] {
                for r in 0..data_rows {
                    let f = f64::from(row(&it.flows.values, it.capacity, used.flow, r, u, 1)[0]);
                    let cell = it.cells[used.cells as usize * it.capacity + r];
                    let (x, xx) = match cell {
                        MISSING => (mean, mean * mean + std * std),
                        cell if p.kind == GAUSSIAN => {
                            let x = f64::from(f32::from_bits(cell)) - p.origin;
                            (x, x * x)
                        }
                        cell => {
                            let x = p.origin + (f64::from(cell) + 0.5) * p.width;
                            (x, x * x)
                        }
                    };
                    stats[0] += f * x;
                    stats[1] += f * xx;
                    stats[2] += f;
                }
            }
            for (slot, stat) in stats.iter().enumerate() {
                let at = p.stat_at as usize + slot * p.ld as usize + u;
                let off = |got: f64, want: f64| {
                    assert!((got - want).abs() <= 1e-6 * stats[2], "[{slot}, {u}]: {got} is not {want}")
                };
                off(single_host[at].into(), 0.9 * f64::from(before[at]) + stat);
                off(double_host[at], f64::from(before[at]) + stat);
            }
        }
    }
    // The M-step, and the masses.
    let retain: Vec<f64> = (0..it.num_rows).map(|i| 0.2 * (i % 4) as f64).collect();
    let retain_dev = d.up(&retain);
    for double in [false, true] {
        let theta = d.up(&it.theta);
        let pass = Pass { theta: d.at(&theta), ..pass };
        let (masses, rows) = (d.up(&vec![f64::NAN; it.num_rows]), d.up(&vec![f64::NAN; it.num_rows]));
        let update = Update {
            scale: 1.5,
            offset: 9.0,
            gain: 1.1,
            retain: d.at(&retain_dev),
            masses: d.at(&masses),
            source: 1,
            ..Update::default()
        };
        let host: Vec<f64> = if double { double_host.clone() } else { single_host.iter().map(|&f| f.into()).collect() };
        let flows_at = if double { d.at(upload(&d, &host)) } else { d.at(&single) };
        let name = |kernel: &str| format!("{kernel}_{}", if double { "f64" } else { "f32" });
        launch!(d, &name("density_update"), columns, 64, 0; pass, d.at(&densities_dev), flows_at, update);
        launch!(d, &name("density_masses"), columns, 64, 0; d.at(&densities_dev), flows_at, 2.0f64, d.at(&rows));
        let (got, masses, rows) = (d.down(&theta), d.down(&masses), d.down(&rows));
        for p in densities {
            for u in 0..p.units as usize {
                let stat = |slot: usize| host[p.stat_at as usize + slot * p.ld as usize + u];
                let r = p.row_at as usize + u;
                close(masses[r], stat(2), 1e-12, || format!("mass {r}"));
                close(rows[r], 2.0 * stat(2), 1e-12, || format!("row mass {r}"));
                let (mean, std) = expected(p, u);
                let keep = 1.5 * retain[r];
                let s = [
                    1.1 * stat(0) + keep * mean,
                    1.1 * stat(1) + keep * (mean * mean + std * std),
                    1.1 * stat(2) + keep,
                ];
                let mean = s[0] / s[2];
                let variance = s[1] / s[2] - mean * mean;
                let std = if variance > p.min_std * p.min_std { variance.sqrt() } else { p.min_std };
                let (a, b) = if p.kind == GAUSSIAN { (mean + p.origin, std) } else { (mean, std / UNIT_STD) };
                let at = p.theta_at as usize + u;
                assert!((f64::from(got[at]) - a).abs() <= 1e-6, "{} is not {a}", got[at]);
                close(got[at + p.ld as usize].into(), b, 1e-6, || format!("spread of {u}"));
            }
        }
    }
}

/// Kept for the life of the test.
fn upload(d: &Device, host: &[f64]) -> &'static cudarc::driver::CudaSlice<f64> {
    Box::leak(Box::new(d.up(host)))
}

#[test]
fn top_down_rows_add_the_last_row_of_all_uses() {
    top_down(false);
}

#[test]
fn typical_top_down() {
    top_down(true);
}

fn top_down(typical: bool) {
    let d = super::device_or_return!();
    let it = inputs(15, 20, typical);
    let (flows_dev, params_dev, uses_dev) = (d.up(&it.flows.values), d.up(&it.params), d.up(&it.uses));
    let rows = d.up(&vec![f64::NAN; it.num_rows]);
    let pass = Pass {
        flows: d.at(&flows_dev),
        rows: it.rows as i32,
        data_rows: it.rows as i32 - 1,
        capacity: it.capacity as i32,
        ..Pass::default()
    };
    launch!(d, "top_down_rows", (tiles(widest(&it), 128), it.params.len()), 128, 0;
        pass, d.at(&params_dev), d.at(&uses_dev), d.at(&rows));
    let got = d.down(&rows);
    for p in &it.params {
        for u in 0..p.units as usize {
            let uses = &it.uses[p.first_use as usize..][..p.num_uses as usize];
            let want: f64 = uses
                .iter()
                .map(|used| f64::from(row(&it.flows.values, it.capacity, used.flow, it.rows - 1, u, 1)[0]))
                .sum();
            close(got[p.row_at as usize + u], want, 0.0, || format!("row {u}"));
        }
    }
}

#[test]
fn gradient_steps_and_elements_agree_with_double_precision() {
    gradient(false);
}

#[test]
fn typical_gradient() {
    gradient(true);
}

fn gradient(typical: bool) {
    let d = super::device_or_return!();
    let it = inputs(16, 5, typical);
    let mut rng = Rng::new(55);
    // A table, and the other one read as weights.
    let mut params = it.params[..2].to_vec();
    params[1].kind = WEIGHTS;
    (params[1].units, params[1].slots) = (params[1].slots, params[1].units);
    let td: Vec<f64> = (0..it.num_rows).map(|_| rng.uniform()).collect();
    let flows: Vec<f32> = (0..it.num_stats).map(|_| rng.positive()).collect();
    let (theta_dev, params_dev, td_dev) = (d.up(&it.theta), d.up(&params), d.up(&td));
    let (single, double) = (d.up(&flows), d.up(&flows.iter().map(|&f| f64::from(f)).collect::<Vec<f64>>()));
    let pass = Pass { theta: d.at(&theta_dev), ..Pass::default() };
    launch!(d, "gradient_f32", (3, 2), 256, 0; pass, d.at(&params_dev), d.at(&single), 0.3f64, d.at(&td_dev));
    launch!(d, "gradient_f64", (3, 2), 256, 0; pass, d.at(&params_dev), d.at(&double), 0.3f64, d.at(&td_dev));
    let (single, double) = (d.down(&single), d.down(&double));
    for (p, is_table) in params.iter().zip([true, false]) {
        let (lines, width) = if is_table { (p.slots, p.units) } else { (p.units, p.slots) };
        for line in 0..lines as usize {
            for i in 0..width as usize {
                let at = line * p.ld as usize + i;
                let (f, t) = (f64::from(flows[p.stat_at as usize + at]), f64::from(it.theta[p.theta_at as usize + at]));
                let want = 0.3 * f - td[p.row_at as usize + if is_table { i } else { line }] * t;
                assert!((f64::from(single[p.stat_at as usize + at]) - want).abs() < 1e-7);
                assert!((double[p.stat_at as usize + at] - want).abs() < 1e-15);
            }
        }
    }

    let n = 1003usize;
    let numbers = |rng: &mut Rng| -> Vec<f32> { (0..n).map(|_| (rng.uniform() - 0.5) as f32).collect() };
    let (theta, g, m): (Vec<f32>, Vec<f32>, Vec<f32>) =
        ((0..n).map(|_| rng.positive()).collect(), numbers(&mut rng), numbers(&mut rng));
    let v: Vec<f32> = (0..n).map(|_| rng.positive()).collect();
    let (theta_dev, g_dev, m_dev, v_dev) = (d.up(&theta), d.up(&g), d.up(&m), d.up(&v));
    launch!(d, "adam", 2, 256, 0;
        d.at(&theta_dev), d.at(&g_dev), d.at(&m_dev), d.at(&v_dev), n as i64,
        0.1f32, 0.9f32, 0.99f32, 2.0f32, 3.0f32, 1e-8f32);
    let (got, got_m, got_v) = (d.down(&theta_dev), d.down(&m_dev), d.down(&v_dev));
    for i in 0..n {
        let (b1, b2) = (f64::from(0.9f32), f64::from(0.99f32));
        let g = f64::from(g[i]);
        let m1 = b1 * f64::from(m[i]) + (1.0 - b1) * g;
        let v1 = b2 * f64::from(v[i]) + (1.0 - b2) * g * g;
        assert!((f64::from(got_m[i]) - m1).abs() < 1e-7 && (f64::from(got_v[i]) - v1).abs() < 1e-7);
        let want =
            f64::from(theta[i]) * (f64::from(0.1f32) * m1 * 2.0 / ((v1 * 3.0).sqrt() + 1e-8)).clamp(-20.0, 20.0).exp();
        close(got[i].into(), want, 1e-6, || format!("adam {i}"));
    }
    let theta_dev = d.up(&theta);
    launch!(d, "ascend", 1, 256, 0; d.at(&theta_dev), d.at(&g_dev), n as i64, 90.0f32);
    for (i, got) in d.down(&theta_dev).into_iter().enumerate() {
        close(got.into(), f64::from(theta[i]) * (90.0 * f64::from(g[i])).clamp(-20.0, 20.0).exp(), 1e-5, || {
            format!("ascend {i}")
        });
    }

    let (a, b) = (numbers(&mut rng), numbers(&mut rng));
    let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| x.into()).collect() };
    for (from_double, into_double) in [(false, false), (false, true), (true, false), (true, true)] {
        let (fs, fd, is, id) = (d.up(&a), d.up(&wide(&a)), d.up(&b), d.up(&wide(&b)));
        let name = format!("add_scaled_{}{}", if from_double { "d" } else { "f" }, if into_double { "d" } else { "f" });
        let (from, into) =
            (if from_double { d.at(&fd) } else { d.at(&fs) }, if into_double { d.at(&id) } else { d.at(&is) });
        launch!(d, &name, 2, 256, 0; from, 0.7f64, into, n as i64);
        let got = if into_double { d.down(&id) } else { wide(&d.down(&is)) };
        (0..n).for_each(|i| assert!((got[i] - (f64::from(b[i]) + 0.7 * f64::from(a[i]))).abs() < 1e-7));
    }
    for factor in [0.5f64, 0.0] {
        let bad: Vec<f32> = a.iter().map(|&x| if factor == 0.0 { f32::NAN } else { x }).collect();
        let (s, w) = (d.up(&bad), d.up(&wide(&bad)));
        launch!(d, "scale_f32", 3, 256, 0; d.at(&s), factor, n as i64);
        launch!(d, "scale_f64", 3, 256, 0; d.at(&w), factor, n as i64);
        let (s, w) = (d.down(&s), d.down(&w));
        (0..n).for_each(|i| {
            assert!(f64::from(s[i]) == w[i] && w[i] == if factor == 0.0 { 0.0 } else { 0.5 * f64::from(a[i]) })
        });
    }
    let (rows, into, filled) = (d.up(&wide(&a)), d.up(&wide(&b)), d.up(&vec![f64::NAN; n]));
    launch!(d, "blend_rows", 1, 256, 0; d.at(&into), 0.2f64, d.at(&rows), 3.0f64, n as i64);
    launch!(d, "fill_f64", 1, 256, 0; d.at(&filled), 1.25f64, n as i64);
    let (into, filled) = (d.down(&into), d.down(&filled));
    (0..n).for_each(|i| {
        assert!((into[i] - (0.2 * f64::from(b[i]) + 3.0 * f64::from(a[i]))).abs() < 1e-12 && filled[i] == 1.25)
    });
}
