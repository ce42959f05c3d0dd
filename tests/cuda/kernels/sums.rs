//! Sums: forward, scales, G, flows below, flows of weights.

use super::device::*;
use super::scaled::{self, Extremes, NO_LOSS, Scale, ZERO};

#[derive(Clone)]
struct Case {
    rows: usize,
    /// Units, columns, first column of the panel in its buffer.
    groups: Vec<(usize, usize, usize)>,
    one_panel: bool,
    /// True if weight rows are padded, as recommended.
    padded: bool,
    /// True if it is what most launches are: for the counters.
    typical: bool,
}

fn case(rows: usize, groups: &[(usize, usize, usize)], one_panel: bool, padded: bool) -> Case {
    Case { rows, groups: groups.to_vec(), one_panel, padded, typical: false }
}

/// Sizes that are no multiples of tiles, and rows of all kinds.
fn cases() -> Vec<Case> {
    vec![
        case(1, &[(1, 1, 0)], true, true),
        case(5, &[(3, 7, 0)], true, false),
        case(64, &[(64, 64, 0)], true, true),
        case(70, &[(37, 129, 0)], true, true),
        case(130, &[(100, 65, 0)], true, false),
        // Block-diagonal: slices of one buffer.
        case(33, &[(16, 16, 0), (16, 16, 16), (16, 16, 32)], true, true),
        case(33, &[(5, 5, 0), (5, 5, 5), (5, 5, 10)], true, false),
        // Groups with panels of their own.
        case(66, &[(40, 20, 0), (7, 70, 0)], false, true),
    ]
}

/// What most launches are, if smaller: a dense sum, a block-diagonal one, one over two children; nothing out of range.
#[test]
fn typical_sums() {
    let device = super::device_or_return!();
    let blocks: Vec<(usize, usize, usize)> = (0..4).map(|b| (32, 32, 32 * b)).collect();
    let cases = [
        case(96, &[(104, 96, 0)], true, true),
        case(64, &blocks, true, true),
        case(72, &[(64, 40, 0), (24, 64, 0)], false, true),
    ];
    for math in MATHS {
        for (i, case) in cases.iter().enumerate() {
            run(&device, math, &Case { typical: true, ..case.clone() }, 100 + i as u64);
        }
    }
}

const MATHS: [&str; 7] = ["f32", "tf32", "bf16", "bf16x3", "tf32_tall", "bf16_tall", "bf16x3_tall"];

/// Tolerance of one product with rounded operands, all terms positive.
fn tolerance(math: &str) -> f64 {
    match math.trim_end_matches("_tall") {
        "f32" => 2e-6,
        "bf16x3" => 5e-5, // 2^-16 from each operand and from low times low
        "tf32" => 1.1e-3, // 2^-11 from each operand
        _ => 8e-3,        // 2^-9 from each
    }
}

fn scale_of(pair: ScalePair) -> Scale {
    Scale { exponent: pair.exponent, loss: pair.loss }
}

#[test]
fn sums_agree_with_double_precision() {
    let device = super::device_or_return!();
    for math in MATHS {
        for (i, case) in cases().iter().enumerate() {
            run(&device, math, case, i as u64);
        }
    }
}

fn run(device: &Device, math: &str, case: &Case, seed: u64) {
    let mut rng = Rng::new(seed + 1);
    let Case { rows, groups, one_panel, padded, typical } = case;
    let (rows, capacity) = (*rows, *rows + 3);
    let mut slab = Slab::new(capacity);
    let what = |w: &str, r: usize, c: usize| format!("{math} case {seed}: {w} [{r}, {c}]");

    // Panels.
    let widths: Vec<usize> = match one_panel {
        true => vec![groups.iter().map(|g| g.2 + g.1).max().unwrap()],
        false => groups.iter().map(|g| g.2 + g.1).collect(),
    };
    let panels: Vec<Buffer> = widths.iter().map(|&w| slab.take(w)).collect();
    for (panel, &width) in panels.iter().zip(&widths) {
        slab.fill(*panel, rows, width, |_, _| rng.positive());
        for row in 0..rows {
            let exponent = rng.below(9) as i64 - 4;
            *slab.scale(*panel, row) = ScalePair { exponent, loss: NO_LOSS };
            // Some rows are strange: zero, tiny, of wide range, lossy.
            let at = slab.row_at(*panel, row);
            match if *typical { 9 } else { rng.below(12) } {
                0 => {
                    slab.values[at..at + width].fill(0.0);
                    slab.scale(*panel, row).exponent = ZERO;
                }
                1 => slab.values[at..at + width].iter_mut().for_each(|v| *v *= 2f32.powi(-60)),
                2 => slab.values[at..at + width]
                    .iter_mut()
                    .enumerate()
                    .for_each(|(k, v)| *v *= 2f32.powi(-(k as i32 * 37 % 99))),
                3 => slab.scale(*panel, row).loss = -70,
                4 => slab.values[at..at + width]
                    .iter_mut()
                    .enumerate()
                    .for_each(|(k, v)| *v = if k % 5 == 0 { *v } else { 0.0 }),
                _ => {}
            }
        }
    }
    let units: usize = groups.iter().map(|g| g.0).sum();
    let value = slab.take(units);

    // Weights: rows that sum to one, some zeros among them.
    let (mut theta, mut params, mut group_descs, mut targets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut flows = Slab::new(capacity);
    let flow = flows.take(units);
    flows.fill(flow, rows, units, |_, _| rng.positive());
    let (mut start, mut extremes_at, mut partial_at) = (0, 0, 0);
    let mut uses = Vec::new();
    let target_buffers: Vec<Buffer> = widths.iter().map(|&w| flows.take(w)).collect();
    for (buffer, &w) in target_buffers.iter().zip(&widths) {
        flows.fill(*buffer, rows, w, |_, _| rng.positive());
    }
    let flows_before = flows.values.clone();
    for (g, &(units, cols, panel_start)) in groups.iter().enumerate() {
        let panel = panels[if *one_panel { 0 } else { g }];
        let target = target_buffers[if *one_panel { 0 } else { g }];
        let ld = if *padded { cols.next_multiple_of(8) } else { cols };
        if *padded {
            theta.resize(theta.len().next_multiple_of(32), f32::NAN);
        }
        let theta_at = theta.len();
        for _ in 0..units {
            let mut row: Vec<f32> = (0..cols)
                .map(|_| if rng.below(9) == 0 && cols > 3 && !typical { 0.0 } else { rng.positive() })
                .collect();
            let total: f32 = row.iter().sum();
            row.iter_mut().for_each(|w| *w /= total);
            theta.extend(row);
            theta.resize(theta.len() + ld - cols, f32::NAN);
        }
        // The flow of a panel goes to its own columns, cut in two slices: the first is set, the second added to.
        let first_target = targets.len();
        let cut = if *typical { cols / 2 / 8 * 8 } else { cols / 3 };
        for (col, len, add) in [(0, cut, 0), (cut, cols - cut, 1)] {
            if len > 0 {
                let start = (panel_start + col) as i32;
                targets.push(TargetDesc { target, start, col: col as i32, units: len as i32, add });
            }
        }
        group_descs.push(GroupDesc {
            value,
            flow,
            panel,
            theta_at: theta_at as i64,
            extremes_at: extremes_at as i64,
            theta_ld: ld as i32,
            start: start as i32,
            units: units as i32,
            panel_start: panel_start as i32,
            cols: cols as i32,
            first_target: first_target as i32,
            num_targets: (targets.len() - first_target) as i32,
            pad: 0,
        });
        params.push(ParamDesc {
            theta_at: theta_at as i64,
            stat_at: theta_at as i64,
            row_at: start as i64,
            partial_at: partial_at as i64,
            kind: WEIGHTS,
            units: units as i32,
            slots: cols as i32,
            ld: ld as i32,
            first_use: uses.len() as i32,
            num_uses: 2,
            ..ParamDesc::default()
        });
        // Used twice, to see that uses add up.
        let used = UseDesc {
            gain: value,
            panel,
            flow,
            gain_start: start as i32,
            panel_start: panel_start as i32,
            cells: 0,
            pad: 0,
        };
        uses.extend([used, used]);
        start += units;
        extremes_at += tiles(units, 64);
        partial_at += 8 * units * ld;
    }
    let sum = SumDesc {
        value,
        first_group: 0,
        num_groups: groups.len() as i32,
        units: units as i32,
        one_panel: i32::from(*one_panel),
    };

    let d = device;
    let (values, node_flows, scales) = (d.up(&slab.values), d.up(&flows.values), d.up(&slab.scales));
    let (theta_dev, degenerate) = (d.up(&theta), d.up(&vec![0u32; capacity]));
    let extremes = d.fresh::<u32>(2 * extremes_at * capacity);
    let data_rows = rows - usize::from(rows > 1);
    let pass = Pass {
        values: d.at(&values),
        flows: d.at(&node_flows),
        scales: d.at(&scales),
        theta: d.at(&theta_dev),
        cells: 0,
        degenerate: d.at(&degenerate),
        rows: rows as i32,
        data_rows: data_rows as i32,
        capacity: capacity as i32,
        flow_bits: 0,
    };
    let (groups_dev, sums_dev) = (d.up(&group_descs), d.up(&[sum]));
    let (targets_dev, params_dev, uses_dev) = (d.up(&targets), d.up(&params), d.up(&uses));
    let tall = if math.ends_with("_tall") { 128 } else { 64 };
    let max_units = groups.iter().map(|g| g.0).max().unwrap();
    let max_cols = groups.iter().map(|g| g.1).max().unwrap();

    // Forward.
    launch!(d, &format!("sum_forward_{math}"), (tiles(max_units, 64), tiles(rows, tall), groups.len()), 128, 0;
        pass, d.at(&groups_dev), d.at(&extremes));
    let before = d.down(&values);
    for group in &group_descs {
        for r in 0..rows {
            let panel = row(&slab.values, capacity, group.panel, r, group.panel_start as usize, group.cols as usize);
            let got = row(&before, capacity, group.value, r, group.start as usize, group.units as usize);
            for (u, &got) in got.iter().enumerate() {
                let w = &theta[group.theta_at as usize + u * group.theta_ld as usize..][..group.cols as usize];
                let want: f64 = panel.iter().zip(w).map(|(&v, &w)| f64::from(v) * f64::from(w)).sum();
                close(got.into(), want, tolerance(math) + 1e-7 * f64::from(group.cols), || what("value", r, u));
            }
        }
    }

    // Scales: what the CPU makes of these very values.
    launch!(d, "sum_finish", (tiles(rows, 128), 1), 128, 0; pass, d.at(&sums_dev), d.at(&groups_dev), d.at(&extremes));
    let (after, scales_after, flags) = (d.down(&values), d.down(&scales), d.down(&degenerate));
    for r in 0..rows {
        let mut out = row(&before, capacity, value, r, 0, units).to_vec();
        let (scale, marked) = finish_sum(&mut out, &group_descs, &slab, &theta, r, *one_panel);
        let got = row(&after, capacity, value, r, 0, units);
        assert!(got.iter().zip(&out).all(|(a, b)| a.to_bits() == b.to_bits()), "{}", what("finished", r, 0));
        let got = scales_after[value.scale as usize * capacity + r];
        assert_eq!((got.exponent, got.loss), (scale.exponent, scale.loss), "{}", what("scale", r, 0));
        assert_eq!(flags[r] != 0, marked, "{}", what("degenerate", r, 0));
        let padding = row(&after, capacity, value, r, units, value.ld as usize - units);
        assert!(padding.iter().all(|x| x.is_nan()), "{}", what("padding", r, 0));
    }

    // G.
    launch!(d, "sum_gain", (tiles(rows, 8), groups.len()), 256, 0; pass, d.at(&groups_dev));
    let gains = d.down(&values);
    for group in &group_descs {
        for r in 0..rows {
            let (own, panel) = (
                scales_after[value.scale as usize * capacity + r],
                slab.scales[group.panel.scale as usize * capacity + r],
            );
            for u in 0..group.units as usize {
                let at = group.start as usize + u;
                let v = row(&after, capacity, value, r, at, 1)[0];
                let f = row(&flows_before, capacity, flow, r, at, 1)[0];
                let lost = flags[r] != 0 || own.exponent <= ZERO || panel.exponent <= ZERO || v == 0.0;
                let want = if lost {
                    0.0
                } else {
                    f64::from(f) / f64::from(v) * 2f64.powi((panel.exponent - own.exponent) as i32)
                };
                close(row(&gains, capacity, value, r, at, 1)[0].into(), want, 3e-7, || what("gain", r, at));
            }
        }
    }

    // Flows below.
    launch!(d, &format!("sum_backward_{math}"), (tiles(max_cols, 64), tiles(rows, tall), groups.len()), 128, 0;
        pass, d.at(&groups_dev), d.at(&targets_dev));
    let below = d.down(&node_flows);
    for group in &group_descs {
        for target in &targets[group.first_target as usize..][..group.num_targets as usize] {
            for r in 0..rows {
                let gain = row(&gains, capacity, value, r, group.start as usize, group.units as usize);
                for c in 0..target.units as usize {
                    let col = target.col as usize + c;
                    let v = row(&slab.values, capacity, group.panel, r, group.panel_start as usize + col, 1)[0];
                    let product: f64 = gain
                        .iter()
                        .enumerate()
                        .map(|(u, &g)| {
                            f64::from(g) * f64::from(theta[group.theta_at as usize + u * group.theta_ld as usize + col])
                        })
                        .sum();
                    let old = row(&flows_before, capacity, target.target, r, target.start as usize + c, 1)[0];
                    let want = f64::from(v) * product + if target.add != 0 { f64::from(old) } else { 0.0 };
                    let got = row(&below, capacity, target.target, r, target.start as usize + c, 1)[0];
                    close(got.into(), want, tolerance(math) + 1e-7 * f64::from(group.units), || what("flow", r, col));
                }
            }
        }
    }

    // Flows of weights: two uses of the same values, splits of one chunk each.
    let chunks = 2 * tiles(data_rows, 32);
    let per_split = chunks.div_ceil(3).max(1);
    let splits = chunks.div_ceil(per_split);
    assert!(splits <= 8);
    let partials = d.fresh::<f32>(partial_at);
    launch!(d, &format!("sum_flows_{math}"),
        (tiles(max_units, tall) * tiles(max_cols, 64), splits, groups.len()), 128, 0;
        pass, d.at(&params_dev), d.at(&uses_dev), d.at(&partials), per_split as i32);
    let start_flows: Vec<f32> = theta.iter().map(|t| if t.is_nan() { f32::NAN } else { rng.positive() }).collect();
    let single = d.up(&start_flows);
    let double = d.up(&start_flows.iter().map(|&f| f64::from(f)).collect::<Vec<f64>>());
    launch!(d, "weights_flows_f32", (tiles(max_units, 8), groups.len()), 256, 0;
        pass, d.at(&params_dev), d.at(&partials), d.at(&single), 0.9f32, per_split as i32);
    launch!(d, "weights_flows_f64", (tiles(max_units, 8), groups.len()), 256, 0;
        pass, d.at(&params_dev), d.at(&partials), d.at(&double), 0.5f32, per_split as i32);
    let (single, double) = (d.down(&single), d.down(&double));
    for group in &group_descs {
        for u in 0..group.units as usize {
            for c in 0..group.cols as usize {
                let at = group.theta_at as usize + u * group.theta_ld as usize + c;
                let sum: f64 = (0..data_rows)
                    .map(|r| {
                        let g = row(&gains, capacity, value, r, group.start as usize + u, 1)[0];
                        let v = row(&slab.values, capacity, group.panel, r, group.panel_start as usize + c, 1)[0];
                        2.0 * f64::from(g) * f64::from(v)
                    })
                    .sum();
                let flow = f64::from(theta[at]) * sum;
                let tolerance = tolerance(math) + 1e-7 * rows as f64;
                close(single[at].into(), 0.9 * f64::from(start_flows[at]) + flow, tolerance, || {
                    what("weight flow", u, c)
                });
                close(double[at], f64::from(start_flows[at]) + flow, tolerance, || what("weight flow in f64", u, c));
            }
        }
    }
    weights(d, &pass, &params, &theta, &start_flows, &single, (&theta_dev, &partials), per_split, math, seed);
}

/// The update of weights, alone and fused with their flows.
#[expect(clippy::too_many_arguments, reason = "it goes on where its caller stops")]
fn weights(
    d: &Device,
    pass: &Pass,
    params: &[ParamDesc],
    theta: &[f32],
    before: &[f32],
    flows: &[f32],
    (theta_dev, partials): (&cudarc::driver::CudaSlice<f32>, &cudarc::driver::CudaSlice<f32>),
    per_split: usize,
    math: &str,
    seed: u64,
) {
    let num_rows: usize = params.iter().map(|p| p.units as usize).sum();
    let retain: Vec<f64> = (0..num_rows).map(|i| if i % 7 == 3 { 0.0 } else { 0.1 * (i % 5 + 1) as f64 }).collect();
    let retain_dev = d.up(&retain);
    let max_units = params.iter().map(|p| p.units as usize).max().unwrap();
    let grid = (tiles(max_units, 8), params.len());
    let params_dev = d.up(params);
    for (source, absolute, epsilon) in [(0, 0, 1e-6), (1, 0, 1e-2), (1, 1, 1e-2), (2, 1, 1e-3)] {
        let masses = d.up(&vec![f64::NAN; num_rows]);
        let update = Update {
            scale: 1.5,
            offset: if source == 2 { 0.01 } else { 0.0 },
            gain: 1.1,
            epsilon,
            retain: d.at(&retain_dev),
            masses: d.at(&masses),
            absolute,
            source,
            keep: 0.9,
            pad: 0,
        };
        // Fused, from the flows before; alone, from the flows after, in both precisions.
        let mut results = Vec::new();
        for kind in ["step", "f32", "f64"] {
            let theta_copy = d.up(theta);
            let pass = Pass { theta: d.at(&theta_copy), ..*pass };
            match kind {
                "step" => {
                    let buffer = d.up(before);
                    launch!(d, "weights_step", grid, 256, 0;
                        pass, d.at(&params_dev), d.at(partials), d.at(&buffer), per_split as i32, update);
                    let got = d.down(&buffer);
                    assert!(
                        got.iter().zip(flows).all(|(a, b)| a.to_bits() == b.to_bits()),
                        "{math} {seed}: the same flows fused"
                    );
                }
                "f32" => {
                    let buffer = d.up(flows);
                    launch!(d, "weights_update_f32", grid, 256, 0; pass, d.at(&params_dev), d.at(&buffer), update);
                }
                _ => {
                    let buffer = d.up(&flows.iter().map(|&f| f64::from(f)).collect::<Vec<f64>>());
                    launch!(d, "weights_update_f64", grid, 256, 0; pass, d.at(&params_dev), d.at(&buffer), update);
                }
            }
            results.push((d.down(&theta_copy), d.down(&masses)));
        }
        let flows_dev = d.up(flows);
        let rows_dev = d.up(&vec![f64::NAN; num_rows]);
        launch!(d, "weights_masses_f32", grid, 256, 0; d.at(&params_dev), d.at(&flows_dev), 2.0f64, d.at(&rows_dev));
        let row_masses = d.down(&rows_dev);
        let double_dev = d.up(&flows.iter().map(|&f| f64::from(f)).collect::<Vec<f64>>());
        launch!(d, "weights_masses_f64", grid, 256, 0; d.at(&params_dev), d.at(&double_dev), 2.0f64, d.at(&rows_dev));
        assert_eq!(d.down(&rows_dev), row_masses, "{math} {seed}: the same masses in both precisions");
        for p in params {
            for u in 0..p.units as usize {
                let at = p.theta_at as usize + u * p.ld as usize;
                let len = p.slots as usize;
                let (old, f) = (&theta[at..at + len], &flows[at..at + len]);
                let sum = |x: &[f32]| x.iter().map(|&x| f64::from(x)).sum::<f64>();
                let row = p.row_at as usize + u;
                close(row_masses[row], 2.0 * sum(f), 1e-12, || format!("{math} {seed}: mass {row}"));
                let mass = match source {
                    0 => 0.0,
                    1 => 1.5 * retain[row],
                    _ => 1.5 * (1.1 * sum(f) + 0.01),
                };
                let total = mass * sum(old) + 1.1 * sum(f);
                for (got, masses) in &results {
                    close(masses[row], sum(f), 1e-12, || format!("{math} {seed}: mass {row}"));
                    for c in 0..len {
                        let new = mass * f64::from(old[c]) + 1.1 * f64::from(f[c]);
                        let want = match absolute {
                            0 => (new + epsilon * total / len as f64) / (total * (1.0 + epsilon)),
                            _ => (new + epsilon / len as f64) / (total + epsilon),
                        };
                        close(got[at + c].into(), want, 1e-6, || format!("{math} {seed}: θ' [{u}, {c}] by {source}"));
                    }
                }
            }
        }
    }
    let _ = theta_dev;
}

/// `finish_sum` of src/backend/cpu/forward.rs for one row.
fn finish_sum(
    out: &mut [f32],
    groups: &[GroupDesc],
    slab: &Slab,
    theta: &[f32],
    r: usize,
    one_panel: bool,
) -> (Scale, bool) {
    let panel_scale = |g: &GroupDesc| scale_of(slab.scales[g.panel.scale as usize * slab.capacity + r]);
    if one_panel {
        let (seen, panel) = (scaled::extremes(out), panel_scale(&groups[0]));
        if scaled::is_comfortable(seen) && panel.exponent > ZERO {
            let loss = if scaled::is_above_loss(seen.min, panel.exponent, panel) { NO_LOSS } else { panel.loss };
            return (Scale { exponent: panel.exponent, loss }, scaled::gain_bits(seen.min, 0) > 101);
        }
    }
    let mut marked = false;
    let mut found: Vec<(Extremes, Scale)> = Vec::new();
    for group in groups {
        let mut panel_scale = panel_scale(group);
        let outputs = &out[group.start as usize..][..group.units as usize];
        let seen = scaled::extremes(outputs);
        if seen.min < scaled::DOUBTFUL.to_bits() && panel_scale.exponent > ZERO {
            let panel =
                row(&slab.values, slab.capacity, group.panel, r, group.panel_start as usize, group.cols as usize);
            let hides = outputs.iter().enumerate().any(|(u, &output)| {
                let weights = &theta[group.theta_at as usize + u * group.theta_ld as usize..][..group.cols as usize];
                match output {
                    0.0 => panel.iter().zip(weights).any(|(&v, &w)| v > 0.0 && w > 0.0),
                    _ => output < scaled::DOUBTFUL,
                }
            });
            if hides {
                panel_scale.loss = panel_scale.loss.max(scaled::underflow_loss(panel_scale.exponent) + 20);
            }
        }
        found.push((seen, panel_scale));
    }
    let exponent = found.iter().map(|(seen, s)| scaled::standard_exponent(seen.max, s.exponent)).max().unwrap();
    let mut merged = Scale { exponent: ZERO, loss: NO_LOSS };
    for (group, &(seen, panel_scale)) in groups.iter().zip(&found) {
        let part = &mut out[group.start as usize..][..group.units as usize];
        let mut after = scaled::align_row(part, seen.max, panel_scale, exponent);
        if scaled::is_above_loss(seen.min, panel_scale.exponent, after) {
            after.loss = NO_LOSS;
        }
        if after.exponent > ZERO {
            let smallest = part.iter().filter(|x| **x > 0.0).map(|x| x.to_bits()).min();
            let bits = smallest.map_or(0, |min| scaled::gain_bits(min, panel_scale.exponent - after.exponent));
            marked |= bits > 101;
        }
        merged.exponent = merged.exponent.max(after.exponent);
        merged.loss = merged.loss.max(after.loss);
    }
    (merged, marked)
}
