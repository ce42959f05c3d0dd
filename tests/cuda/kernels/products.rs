//! Products, panels and what a pass finds at the root: bit by bit what the CPU's rules give.

use super::device::*;
use super::scaled::{self, Extremes, NO_LOSS, Scale, TOTAL_LOSS, ZERO};

/// Brings 2^−40 to a name.
const LOW_WATER: u32 = (127 - 40) << 23;

fn transpose(rows: usize, cols: usize) -> Vec<u32> {
    (0..cols).flat_map(|col| (0..rows).map(move |row| (row * cols + col) as u32)).collect()
}

/// How the words of a staged `rows × cols` matrix are spread that is read transposed.
fn skew_of(rows: usize, cols: usize) -> i32 {
    let (right, left) = ((cols.ilog2() as i32 - 5).max(0), (5 - rows.ilog2() as i32).max(0));
    right + 256 * left
}

/// A factor of the test: where it comes from and how it is mapped.
#[derive(Clone)]
enum From {
    Value(usize),
    Table(usize),
}

struct Factor {
    from: From,
    map: Option<Vec<u32>>,
    skew: i32,
}

#[test]
fn products_are_those_of_the_cpu() {
    let device = super::device_or_return!();
    for (seed, units, cols, staged) in [
        (1, 1, 1, true),
        (2, 37, 1, true),
        (3, 48, 16, true),
        (4, 130, 10, true),
        (5, 48, 16, false),
        (6, 576, 24, true),
    ] {
        run(&device, seed, units, cols, staged, false);
    }
}

/// What most launches are, if smaller: aligned rows, maps that are transposes.
#[test]
fn typical_products() {
    let device = super::device_or_return!();
    for (seed, units, cols) in
        [(31, 256, 16), (32, 1024, 32), (33, 512, 32), (34, 1024, 8), (35, 1024, 128), (36, 2048, 32), (37, 128, 8)]
    {
        run(&device, seed, units, cols, true, true);
    }
}

fn run(d: &Device, seed: u64, units: usize, cols: usize, staged: bool, typical: bool) {
    let mut rng = Rng::new(seed);
    let (rows, capacity, cats) = (21, 24, 6);
    let ld = units.next_multiple_of(8);
    let mut slab = Slab::new(capacity);
    let sources: Vec<Buffer> = (0..4).map(|_| slab.take(units)).collect();
    for &source in &sources {
        for r in 0..rows {
            let power = if typical { 0 } else { [0, 0, -20, -60, -90][rng.below(5)] };
            let at = slab.row_at(source, r);
            for u in 0..units {
                slab.values[at + u] =
                    if rng.below(11) == 0 { 0.0 } else { rng.positive() * 2f32.powi(power - rng.below(8) as i32) };
            }
            let loss = if rng.below(3) == 0 { -(rng.below(90) as i64) - 5 } else { NO_LOSS };
            *slab.scale(source, r) = ScalePair { exponent: rng.below(200) as i64 - 100, loss };
            if !typical && rng.below(9) == 0 {
                slab.values[at..at + units].fill(0.0);
                *slab.scale(source, r) =
                    ScalePair { exponent: ZERO, loss: if rng.below(2) == 0 { NO_LOSS } else { -44 } };
            }
        }
    }
    // Two tables and their cells.
    let theta: Vec<f32> = (0..2 * cats * ld).map(|i| if i % ld < units { rng.positive() } else { f32::NAN }).collect();
    let cells: Vec<u32> = (0..2 * capacity)
        .map(|i| {
            if i % capacity >= rows {
                77
            } else if rng.below(4) == 0 {
                MISSING
            } else {
                rng.below(cats) as u32
            }
        })
        .collect();
    let params: Vec<ParamDesc> = (0..2)
        .map(|t| ParamDesc {
            theta_at: (t * cats * ld) as i64,
            kind: TABLE,
            units: units as i32,
            slots: cats as i32,
            ld: ld as i32,
            ..ParamDesc::default()
        })
        .collect();

    let plain = |from: From| Factor { from, map: None, skew: 5 };
    let scattered: Vec<u32> = (0..units).map(|_| rng.below(units) as u32).collect();
    let mapped = |from: From, map: &Vec<u32>, skew| Factor { from, map: Some(map.clone()), skew };
    let turned = if cols > 1 { transpose(units / cols, cols) } else { scattered.clone() };
    let skew = if cols > 1 { skew_of(units / cols, cols) } else { 0 };
    let scattered = if typical { turned.clone() } else { scattered };
    let products: Vec<Vec<Factor>> = vec![
        vec![plain(From::Value(0))],
        vec![plain(From::Table(0))],
        vec![plain(From::Table(0)), plain(From::Table(1))],
        vec![plain(From::Value(0)), plain(From::Value(1))],
        vec![plain(From::Value(0)), plain(From::Table(1)), plain(From::Value(2)), plain(From::Value(3))],
        vec![mapped(From::Value(1), &turned, skew)],
        vec![plain(From::Table(0)), mapped(From::Value(2), &turned, skew)],
        vec![
            mapped(From::Value(1), &scattered, skew),
            plain(From::Table(1)),
            mapped(From::Value(3), &turned, skew),
            plain(From::Value(0)),
        ],
        vec![mapped(From::Table(1), &scattered, skew), mapped(From::Table(0), &turned, skew)],
    ];
    let (mut maps, mut factors, mut descs): (Vec<u32>, _, _) = (vec![9; 3], Vec::new(), Vec::new());
    for product in &products {
        let value = slab.take(units);
        let first_factor = factors.len() as i32;
        for factor in product {
            let map_at = factor.map.as_ref().map_or(-1, |map| {
                maps.extend(map);
                (maps.len() - map.len()) as i64
            });
            let (source, kind, param) = match factor.from {
                From::Value(i) => (sources[i], 0, 0),
                From::Table(i) => (Buffer::default(), 1, i as i32),
            };
            factors.push(FactorDesc {
                source,
                map_at,
                kind,
                param,
                cells: param,
                units: units as i32,
                skew: factor.skew,
                pad: 0,
            });
        }
        descs.push(ProductDesc { value, first_factor, num_factors: product.len() as i32, units: units as i32, pad: 0 });
    }
    let (values, scales) = (d.up(&slab.values), d.up(&slab.scales));
    let (theta_dev, cells_dev) = (d.up(&theta), d.up(&cells));
    let pass = Pass {
        values: d.at(&values),
        scales: d.at(&scales),
        theta: d.at(&theta_dev),
        cells: d.at(&cells_dev),
        rows: rows as i32,
        data_rows: rows as i32,
        capacity: capacity as i32,
        ..Pass::default()
    };
    let (descs_dev, factors_dev, params_dev, maps_dev) = (d.up(&descs), d.up(&factors), d.up(&params), d.up(&maps));
    let stage = if staged { units.next_multiple_of(32) } else { 0 };
    let warps = if staged { 4 } else { 8 };
    launch!(d, "product_forward", (tiles(rows, warps), descs.len()), 32 * warps, warps * stage * 4;
        pass, d.at(&descs_dev), d.at(&factors_dev), d.at(&params_dev), d.at(&maps_dev), stage as i32);
    let (got, got_scales) = (d.down(&values), d.down(&scales));

    for (p, product) in products.iter().enumerate() {
        for r in 0..rows {
            let read = |from: &From| -> Option<(Vec<f32>, Scale)> {
                match *from {
                    From::Value(i) => {
                        let s = slab.scales[sources[i].scale as usize * capacity + r];
                        let values = row(&slab.values, capacity, sources[i], r, 0, units).to_vec();
                        Some((values, Scale { exponent: s.exponent, loss: s.loss }))
                    }
                    From::Table(t) => match cells[t * capacity + r] {
                        MISSING => None,
                        cat => Some((theta[(t * cats + cat as usize) * ld..][..units].to_vec(), Scale::UNIT)),
                    },
                }
            };
            let (want, scale) = multiply(product, units, read);
            let got = row(&got, capacity, descs[p].value, r, 0, units);
            assert!(
                got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()),
                "seed {seed} product {p} row {r}: {got:?} {want:?}"
            );
            let got = got_scales[descs[p].value.scale as usize * capacity + r];
            assert_eq!((got.exponent, got.loss), (scale.exponent, scale.loss), "seed {seed}: product {p} row {r}");
        }
    }

    // Backward: three targets pull from four product flows, through no map, a permutation, and a map that is none.
    let mut flows = Slab::new(capacity);
    let flow_buffers: Vec<Buffer> = (0..7).map(|_| flows.take(units)).collect();
    for &buffer in &flow_buffers {
        flows.fill(buffer, rows, units, |_, _| rng.positive());
    }
    let inverse = |map: &[u32]| -> (Vec<u32>, Vec<u32>) {
        let (mut starts, mut items) = (vec![0], Vec::new());
        for u in 0..units {
            items.extend((0..units).filter(|&k| map[k] as usize == u).map(|k| k as u32));
            starts.push(items.len() as u32);
        }
        (starts, items)
    };
    let permutation: Vec<u32> = if cols > 1 { turned.clone() } else { (0..units).rev().map(|k| k as u32).collect() };
    let back: Vec<u32> = inverse(&permutation).1;
    let (starts, items) = inverse(&scattered);
    let mut maps = back.clone();
    let (starts_at, items_at) = (maps.len(), maps.len() + starts.len());
    maps.extend(starts.iter().chain(&items));
    let back_skew = if typical { skew_of(cols, units / cols) } else { 0 };
    let source = |flow: usize, starts_at: i64, items_at: i64, skew| PullSource {
        flow: flow_buffers[flow],
        starts_at,
        items_at,
        units: units as i32,
        skew,
    };
    let sources = [
        source(0, -1, -1, 5),
        source(1, -1, 0, if cols > 1 { skew_of(cols, units / cols) } else { 0 }),
        source(2, starts_at as i64, items_at as i64, back_skew),
        source(3, -1, -1, 5),
        source(0, starts_at as i64, items_at as i64, back_skew),
    ];
    let pull = |target: usize, first_source, num_sources, add| PullDesc {
        target: flow_buffers[target],
        first_source,
        num_sources,
        units: units as i32,
        add,
    };
    let pulls = [pull(4, 0, 3, 0), pull(5, 3, 2, 1), pull(6, 1, 1, 1)];
    let flows_dev = d.up(&flows.values);
    let pass = Pass { flows: d.at(&flows_dev), ..pass };
    let stage = if staged { units.next_multiple_of(32) } else { 0 };
    let (pulls_dev, sources_dev, maps_dev) = (d.up(&pulls), d.up(&sources), d.up(&maps));
    launch!(d, "product_backward", (tiles(rows, warps), pulls.len()), 32 * warps, warps * stage * 4;
        pass, d.at(&pulls_dev), d.at(&sources_dev), d.at(&maps_dev), stage as i32);
    let got = d.down(&flows_dev);
    for pull in &pulls {
        for r in 0..rows {
            for u in 0..units {
                let mut want =
                    if pull.add != 0 { f64::from(row(&flows.values, capacity, pull.target, r, u, 1)[0]) } else { 0.0 };
                for s in &sources[pull.first_source as usize..][..pull.num_sources as usize] {
                    let flow = row(&flows.values, capacity, s.flow, r, 0, units);
                    want += (0..units)
                        .filter(|&k| match (s.starts_at, s.items_at) {
                            (_, -1) => k == u,
                            (-1, _) => permutation[k] as usize == u,
                            _ => scattered[k] as usize == u,
                        })
                        .map(|k| f64::from(flow[k]))
                        .sum::<f64>();
                }
                close(row(&got, capacity, pull.target, r, u, 1)[0].into(), want, 1e-6, || {
                    format!("seed {seed}: flow [{r}, {u}]")
                });
            }
        }
    }
}

/// `product_forward` of src/backend/cpu/forward.rs for one row.
fn multiply(factors: &[Factor], units: usize, read: impl Fn(&From) -> Option<(Vec<f32>, Scale)>) -> (Vec<f32>, Scale) {
    let mut out = vec![0f32; units];
    let mut scale = Scale::UNIT;
    let (mut first, mut seen): (Option<Vec<f32>>, Option<Extremes>) = (None, None);
    for factor in factors {
        let Some((values, factor_scale)) = read(&factor.from) else { continue };
        if let Some(Extremes { max, .. }) = seen.filter(|seen| seen.max < LOW_WATER) {
            scale = scaled::standardize_row(&mut out, Extremes { max, min: 0 }, scale);
        }
        scale = scale.times(factor_scale);
        let values: Vec<f32> = match &factor.map {
            None => values,
            Some(map) => map.iter().map(|&u| values[u as usize]).collect(),
        };
        let multiplied = match (&factor.map, first.take(), seen) {
            (None, None, None) => {
                first = Some(values);
                continue;
            }
            (Some(_), None, None) => {
                out.copy_from_slice(&values);
                seen = Some(scaled::extremes(&out));
                continue;
            }
            (_, Some(before), _) => scaled::multiply_rows(&mut out, &before, &values),
            (_, None, Some(_)) => scaled::multiply_into(&mut out, &values),
        };
        seen = Some(multiplied.seen);
        if multiplied.lost {
            scale.loss = scale.loss.max(scaled::underflow_loss(scale.exponent));
        }
    }
    match (&first, seen) {
        (Some(only), _) => out.copy_from_slice(only),
        (None, None) => out.fill(1.0),
        _ => {}
    }
    let seen = seen.unwrap_or_else(|| scaled::extremes(&out));
    let scale = scaled::standardize_row(&mut out, seen, scale);
    (out, scale)
}

#[test]
fn panels_are_those_of_the_cpu() {
    panels([5, 40, 33], [(0, 1, 3), (1, 0, 40), (2, 5, 28), (1, 3, 7), (0, 0, 5)]);
}

#[test]
fn typical_panels() {
    panels([64, 128, 64], [(0, 0, 64), (1, 0, 128), (2, 0, 64), (1, 64, 64), (0, 0, 64)]);
}

/// Two panels of three and two slices: source, first unit, units.
fn panels(widths: [usize; 3], slices: [(usize, i32, i32); 5]) {
    let d = super::device_or_return!();
    let mut rng = Rng::new(11);
    let (rows, capacity) = (19, 20);
    let mut slab = Slab::new(capacity);
    let sources: Vec<Buffer> = widths.iter().map(|&w| slab.take(w)).collect();
    for (&source, &width) in sources.iter().zip(&widths) {
        slab.fill(source, rows, width, |_, _| rng.positive() * 2f32.powi(-(rng.below(3) as i32 * 30)));
        for r in 0..rows {
            let exponent = [0, -3, -60, -140, ZERO][rng.below(5)];
            *slab.scale(source, r) =
                ScalePair { exponent, loss: if rng.below(2) == 0 { NO_LOSS } else { exponent.max(-200) - 50 } };
            if exponent == ZERO {
                let at = slab.row_at(source, r);
                slab.values[at..at + width].fill(0.0);
            }
        }
    }
    let slices = slices.map(|(i, start, units)| SliceDesc { source: sources[i], start, units });
    let units = |slices: &[SliceDesc]| slices.iter().map(|s| s.units).sum::<i32>();
    let (first, second) = (units(&slices[..3]), units(&slices[3..]));
    let panels = [(slab.take(first as usize), 0, 3, first), (slab.take(second as usize), 3, 2, second)];
    let descs = panels.map(|(panel, first_slice, num_slices, units)| PanelDesc {
        panel,
        first_slice,
        num_slices,
        units,
        pad: 0,
    });
    let (values, scales) = (d.up(&slab.values), d.up(&slab.scales));
    let pass = Pass {
        values: d.at(&values),
        scales: d.at(&scales),
        rows: rows as i32,
        capacity: capacity as i32,
        ..Pass::default()
    };
    let (descs_dev, slices_dev) = (d.up(&descs), d.up(&slices));
    launch!(d, "panel_gather", (tiles(rows, 8), descs.len()), 256, 0; pass, d.at(&descs_dev), d.at(&slices_dev));
    let (got, got_scales) = (d.down(&values), d.down(&scales));
    for desc in &descs {
        for r in 0..rows {
            let slices = &slices[desc.first_slice as usize..][..desc.num_slices as usize];
            let scale = |s: &SliceDesc| {
                let s = slab.scales[s.source.scale as usize * capacity + r];
                Scale { exponent: s.exponent, loss: s.loss }
            };
            let exponent = slices.iter().map(|s| scale(s).exponent).max().unwrap();
            let (mut want, mut loss) = (Vec::new(), NO_LOSS);
            for s in slices {
                let mut part = row(&slab.values, capacity, s.source, r, s.start as usize, s.units as usize).to_vec();
                let max = scaled::extremes(&part).max;
                loss = loss.max(scaled::align_row(&mut part, max, scale(s), exponent).loss);
                want.extend(part);
            }
            let got = row(&got, capacity, desc.panel, r, 0, want.len());
            assert!(got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()), "row {r}: {got:?} is not {want:?}");
            let got = got_scales[desc.panel.scale as usize * capacity + r];
            assert_eq!((got.exponent, got.loss), (exponent, loss), "row {r}");
        }
    }
}

#[test]
fn typical_root_tells_likelihoods_flows_and_what_is_degenerate() {
    let d = super::device_or_return!();
    let (rows, data_rows, capacity) = (300, 299, 310);
    let (mut slab, mut flows) = (Slab::new(capacity), Slab::new(capacity));
    let mut rng = Rng::new(3);
    let (value, flow) = (slab.take(1), flows.take(1));
    slab.fill(value, rows, 1, |_, _| if rng.below(6) == 0 { 0.0 } else { rng.positive() });
    for r in 0..rows {
        let exponent = if slab.values[slab.row_at(value, r)] == 0.0 { ZERO } else { -(rng.below(3000) as i64) };
        let loss = [NO_LOSS, NO_LOSS, exponent - 31, exponent - 29, TOTAL_LOSS][rng.below(5)];
        *slab.scale(value, r) = ScalePair { exponent, loss };
    }
    let marked: Vec<u32> = (0..capacity).map(|_| u32::from(rng.below(8) == 0)).collect();
    let weights: Vec<f32> = (0..data_rows).map(|_| rng.positive()).collect();
    let (values, scales, node_flows) = (d.up(&slab.values), d.up(&slab.scales), d.up(&flows.values));
    let (degenerate, weights_dev) = (d.up(&marked), d.up(&weights));
    let log_likelihoods = d.up(&vec![f64::NAN; rows]);
    let report = d.up(&[f64::NAN; 4]);
    let pass = Pass {
        values: d.at(&values),
        flows: d.at(&node_flows),
        scales: d.at(&scales),
        degenerate: d.at(&degenerate),
        rows: rows as i32,
        data_rows: data_rows as i32,
        capacity: capacity as i32,
        ..Pass::default()
    };
    launch!(d, "root_finish", tiles(rows, 256), 256, 0;
        pass, value, flow, d.at(&weights_dev), 0.25f64, d.at(&log_likelihoods));
    launch!(d, "batch_report", 1, 256, 0; pass, d.at(&weights_dev), d.at(&log_likelihoods), d.at(&report));
    let (got, flags, node_flows, report) =
        (d.down(&log_likelihoods), d.down(&degenerate), d.down(&node_flows), d.down(&report));
    let mut want = [0.0; 4];
    for r in 0..rows {
        let (v, s) = (slab.values[slab.row_at(value, r)], slab.scales[value.scale as usize * capacity + r]);
        let impossible = v == 0.0;
        let ll =
            if impossible { f64::NEG_INFINITY } else { f64::from(v).ln() + s.exponent as f64 * std::f64::consts::LN_2 };
        close(got[r], ll, 1e-14, || format!("row {r}"));
        let bad =
            marked[r] != 0 || (s.loss > scaled::SOME_LOSS && (impossible || s.loss > s.exponent - scaled::SAFE_BITS));
        assert_eq!(flags[r] != 0, bad, "row {r}");
        let flow_want = match r < data_rows {
            _ if impossible || bad => 0.0,
            true => (0.25 * f64::from(weights[r])) as f32,
            false => 1.0,
        };
        assert_eq!(node_flows[flows.row_at(flow, r)], flow_want, "row {r}");
        if r < data_rows {
            match (bad, impossible) {
                (true, _) => want[3] += 1.0,
                (_, true) => want[2] += 1.0,
                _ => {
                    want[0] += f64::from(weights[r]) * ll;
                    want[1] += f64::from(weights[r]);
                }
            }
        }
    }
    report.iter().zip(want).for_each(|(got, want)| close(*got, want, 1e-12, || "report".into()));
}
