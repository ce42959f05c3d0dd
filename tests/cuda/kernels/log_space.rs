//! Log space: a small circuit with maps, slices and two groups, far below the range of any float; and renormalisation.
//!
//! I = Gaussian, P0 = T0 ⊙ I, P1 = T1 through a map, S = [A·(P0, part of P1); B·P1], P2 = S ⊙ T0 through a map, root =
//! R·P2.

use super::device::*;

const ROWS: usize = 3;
const CAPACITY: usize = 4;
const LD: usize = 8;
const REVERSED: [usize; 5] = [4, 3, 2, 1, 0];
const WRAPPED: [usize; 7] = [0, 1, 2, 3, 4, 0, 1];

/// First number of each block in theta; weights, then tables, then the Gaussian.
const A: usize = 0; // 4 × 8
const B: usize = 4 * LD; // 3 × 5
const R: usize = B + 3 * LD; // 1 × 7
const T0: usize = R + LD; // 6 cats × 5
const T1: usize = T0 + 6 * LD; // 4 cats × 5
const GAUSS: usize = T1 + 4 * LD; // 2 × 5
const LEN: usize = GAUSS + 3 * LD;

/// What plain recursion gives for one row: log-values of P0, P1, S, P2, the root, and flows of everything.
struct Want {
    root: f64,
    /// Flow of each parameter, for tables by cell; of the Gaussian units.
    weights: Vec<f64>,
    inputs: [Vec<f64>; 4], // T0 at P0, T1, T0 at P2, I
}

fn log_sum(weights: &[f32], values: &[f64]) -> f64 {
    let terms: Vec<f64> = weights.iter().zip(values).map(|(&w, v)| f64::from(w).ln() + v).collect();
    let top = terms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if top == f64::NEG_INFINITY { top } else { top + terms.iter().map(|t| (t - top).exp()).sum::<f64>().ln() }
}

fn want(theta: &[f32], inputs: [Vec<f64>; 4], flow: f64) -> Want {
    let [t0, t1, t0_above, gauss] = inputs;
    let p0: Vec<f64> = (0..5).map(|k| t0[k] + gauss[k]).collect();
    let p1: Vec<f64> = (0..5).map(|k| t1[REVERSED[k]]).collect();
    let panel: Vec<f64> = p0.iter().chain(&p1[1..4]).copied().collect();
    let row = |at: usize, u: usize, len: usize| &theta[at + u * LD..][..len];
    let s: Vec<f64> =
        (0..4).map(|u| log_sum(row(A, u, 8), &panel)).chain((0..3).map(|u| log_sum(row(B, u, 5), &p1))).collect();
    let p2: Vec<f64> = (0..7).map(|k| s[k] + t0_above[WRAPPED[k]]).collect();
    let root = log_sum(row(R, 0, 7), &p2);
    let mut weights = vec![0.0; T0];
    let share =
        |w: f32, v: f64, n: f64| if w > 0.0 && n > f64::NEG_INFINITY { f64::from(w) * (v - n).exp() } else { 0.0 };
    let mut f2 = [0.0; 7];
    for (k, f) in f2.iter_mut().enumerate() {
        *f = flow * share(theta[R + k], p2[k], root);
        weights[R + k] = *f;
    }
    let mut above = vec![0.0; 5];
    f2.iter().enumerate().for_each(|(k, f)| above[WRAPPED[k]] += f);
    let (mut f0, mut f1) = (vec![0.0; 5], vec![0.0; 5]);
    for u in 0..4 {
        for c in 0..8 {
            let f = f2[u] * share(theta[A + u * LD + c], panel[c], s[u]);
            weights[A + u * LD + c] = f;
            if c < 5 { f0[c] += f } else { f1[c - 4] += f }
        }
    }
    for u in 0..3 {
        for c in 0..5 {
            let f = f2[4 + u] * share(theta[B + u * LD + c], p1[c], s[4 + u]);
            weights[B + u * LD + c] = f;
            f1[c] += f;
        }
    }
    let mut of_t1 = vec![0.0; 5];
    (0..5).for_each(|k| of_t1[REVERSED[k]] = f1[k]);
    Want { root, weights, inputs: [f0.clone(), of_t1, above, f0] }
}

struct Circuit {
    params: Vec<ParamDesc>,
    uses: Vec<UseDesc>,
    inputs: Vec<InputDesc>,
    products: Vec<ProductDesc>,
    factors: Vec<FactorDesc>,
    panels: Vec<PanelDesc>,
    slices: Vec<SliceDesc>,
    groups: Vec<GroupDesc>,
    targets: Vec<TargetDesc>,
    pulls: Vec<PullDesc>,
    sources: Vec<PullSource>,
    maps: Vec<u32>,
    root_value: Buffer,
    root_flow: Buffer,
    value_len: usize,
    flow_len: usize,
}

fn circuit() -> Circuit {
    let (mut values, mut flows) = (Slab::new(CAPACITY), Slab::new(CAPACITY));
    let [i, p0, p1, panel, s, p2, root] = [5, 5, 5, 8, 7, 7, 1].map(|units| values.take(units));
    let [f_root, f2, f0, f1, f_t0, f_t1] = [1, 7, 5, 5, 5, 5].map(|units| flows.take(units));
    let mut maps: Vec<u32> = REVERSED.iter().chain(&WRAPPED).map(|&u| u as u32).collect();
    // The way back of WRAPPED.
    let (starts_at, items_at) = (maps.len() as i64, maps.len() as i64 + 6);
    maps.extend([0, 2, 4, 5, 6, 7, 0, 5, 1, 6, 2, 3, 4]);
    let block = |at: usize, row_at: i64, kind, units, slots, first_use, num_uses| ParamDesc {
        theta_at: at as i64,
        stat_at: at as i64,
        row_at,
        kind,
        units,
        slots,
        ld: LD as i32,
        first_use,
        num_uses,
        origin: 0.25,
        min_std: 0.01,
        ..ParamDesc::default()
    };
    let params = vec![
        block(A, 0, WEIGHTS, 4, 8, 0, 1),
        block(B, 4, WEIGHTS, 3, 5, 1, 1),
        block(R, 7, WEIGHTS, 1, 7, 2, 1),
        block(T0, 8, TABLE, 5, 6, 3, 2),
        block(T1, 13, TABLE, 5, 4, 5, 1),
        block(GAUSS, 18, GAUSSIAN, 5, 2, 6, 1),
    ];
    let sum_use = |gain, panel, flow, gain_start| UseDesc { gain, panel, flow, gain_start, ..UseDesc::default() };
    let input_use = |flow, cells| UseDesc { flow, cells, ..UseDesc::default() };
    let uses = vec![
        sum_use(s, panel, f2, 0),
        sum_use(s, p1, f2, 4),
        sum_use(root, p2, f_root, 0),
        input_use(f0, 0),
        input_use(f_t0, 3),
        input_use(f_t1, 1),
        input_use(f0, 2),
    ];
    let factor = |source, map_at, kind, param, cells, units| FactorDesc {
        source,
        map_at,
        kind,
        param,
        cells,
        units,
        skew: 5,
        pad: 0,
    };
    let none = Buffer::default();
    let factors = vec![
        factor(none, -1, 1, 3, 0, 5),
        factor(i, -1, 0, 0, 0, 5),
        factor(none, 0, 1, 4, 1, 5),
        factor(s, -1, 0, 0, 0, 7),
        factor(none, 5, 1, 3, 3, 5),
    ];
    let product =
        |value, first_factor, num_factors, units| ProductDesc { value, first_factor, num_factors, units, pad: 0 };
    let group = |value, flow, panel, at: usize, start, units, cols, first_target, num_targets| GroupDesc {
        value,
        flow,
        panel,
        theta_at: at as i64,
        theta_ld: LD as i32,
        start,
        units,
        cols,
        first_target,
        num_targets,
        ..GroupDesc::default()
    };
    let target = |target, start, col, units, add| TargetDesc { target, start, col, units, add };
    Circuit {
        params,
        uses,
        inputs: vec![InputDesc { value: i, param: 5, cells: 2 }],
        products: vec![product(p0, 0, 2, 5), product(p1, 2, 1, 5), product(p2, 3, 2, 7)],
        factors,
        panels: vec![PanelDesc { panel, first_slice: 0, num_slices: 2, units: 8, pad: 0 }],
        slices: vec![SliceDesc { source: p0, start: 0, units: 5 }, SliceDesc { source: p1, start: 1, units: 3 }],
        // B first on the way back: it sets what A adds to.
        groups: vec![
            group(s, f2, panel, A, 0, 4, 8, 0, 2),
            group(s, f2, p1, B, 4, 3, 5, 2, 1),
            group(root, f_root, p2, R, 0, 1, 7, 3, 1),
        ],
        targets: vec![target(f0, 0, 0, 5, 0), target(f1, 1, 5, 3, 1), target(f1, 0, 0, 5, 0), target(f2, 0, 0, 7, 0)],
        pulls: vec![
            PullDesc { target: f_t0, first_source: 0, num_sources: 1, units: 5, add: 0 },
            PullDesc { target: f_t1, first_source: 1, num_sources: 1, units: 5, add: 0 },
        ],
        sources: vec![
            PullSource { flow: f2, starts_at, items_at, units: 7, skew: 5 },
            PullSource { flow: f1, starts_at: -1, items_at: 0, units: 5, skew: 5 },
        ],
        maps,
        root_value: root,
        root_flow: f_root,
        value_len: values.values.len(),
        flow_len: flows.values.len(),
    }
}

/// All that a row goes through, up and down.
fn up_and_down(d: &Device, c: &Circuit, pass: LogPass) -> Vec<f64> {
    let rows = pass.rows as usize;
    let (inputs, params, products, factors) = (d.up(&c.inputs), d.up(&c.params), d.up(&c.products), d.up(&c.factors));
    let (panels, slices, groups, targets) = (d.up(&c.panels), d.up(&c.slices), d.up(&c.groups), d.up(&c.targets));
    let (pulls, sources, maps) = (d.up(&c.pulls), d.up(&c.sources), d.up(&c.maps));
    let product = |i: usize, n: usize| {
        launch!(d, "log_product", (1, rows, n), 128, 0;
            pass, d.at(&products) + 32 * i as u64, d.at(&factors), d.at(&params), d.at(&maps));
    };
    let log_likelihoods = d.up(&vec![f64::NAN; rows]);
    launch!(d, "log_input", (1, rows, 1), 128, 0; pass, d.at(&inputs), d.at(&params));
    product(0, 2);
    launch!(d, "log_panel", (1, rows, 1), 128, 0; pass, d.at(&panels), d.at(&slices));
    launch!(d, "log_sum", (1, rows, 2), 256, 0; pass, d.at(&groups));
    product(2, 1);
    launch!(d, "log_sum", (1, rows, 1), 256, 0; pass, d.at(&groups) + 2 * 96);
    launch!(d, "log_root", 1, 128, 0; pass, c.root_value, c.root_flow, d.at(&log_likelihoods));
    for (first, n) in [(2, 1), (1, 1), (0, 1)] {
        launch!(d, "log_gain", (1, rows, n), 256, 0; pass, d.at(&groups) + 96 * first as u64);
        launch!(d, "log_sum_backward", (1, rows, n), 128, 0; pass, d.at(&groups) + 96 * first as u64, d.at(&targets));
    }
    launch!(d, "log_product_backward", (1, rows, 2), 128, 0; pass, d.at(&pulls), d.at(&sources), d.at(&maps));
    d.down(&log_likelihoods)
}

fn random_theta(rng: &mut Rng) -> Vec<f32> {
    let mut theta = vec![0.0; LEN];
    for (at, lines, width) in [(A, 4, 8), (B, 3, 5), (R, 1, 7), (T0, 6, 5), (T1, 4, 5), (GAUSS, 2, 5)] {
        for line in 0..lines {
            for i in 0..width {
                theta[at + line * LD + i] = if at == A && i == 2 { 0.0 } else { rng.positive() };
            }
        }
    }
    theta
}

#[test]
fn typical_rescued_rows_agree_with_plain_recursion() {
    let d = super::device_or_return!();
    let mut rng = Rng::new(21);
    let theta = random_theta(&mut rng);
    let c = circuit();
    // Rows 1, 4 and 5 of a batch of six; values hundreds of deviations away.
    let (cells_capacity, row_ids) = (6, [1u32, 4, 5]);
    let mut cells = vec![0u32; 4 * cells_capacity];
    for (column, cats) in [(0, 6), (1, 4), (3, 6)] {
        (0..cells_capacity)
            .for_each(|r| cells[column * cells_capacity + r] = if r == 4 { MISSING } else { rng.below(cats) as u32 });
    }
    (0..cells_capacity).for_each(|r| {
        cells[2 * cells_capacity + r] = if r == 5 { MISSING } else { (1000.0 * r as f32 + 0.5).to_bits() }
    });
    let (theta_dev, cells_dev, ids) = (d.up(&theta), d.up(&cells), d.up(&row_ids));
    let (values, gains, flows) = (d.fresh::<f64>(c.value_len), d.fresh::<f64>(c.value_len), d.fresh::<f64>(c.flow_len));
    let root_flow = [0.5, 2.0, 1.5];
    let root_flow_dev = d.up(&root_flow);
    let pass = LogPass {
        values: d.at(&values),
        gains: d.at(&gains),
        flows: d.at(&flows),
        theta: d.at(&theta_dev),
        cells: d.at(&cells_dev),
        masses: 0,
        row_ids: d.at(&ids),
        root_flow: d.at(&root_flow_dev),
        negligible: 1e-30,
        rows: ROWS as i32,
        capacity: CAPACITY as i32,
        cells_capacity: cells_capacity as i32,
        pad: 0,
        pad2: 0,
    };
    let got = up_and_down(&d, &c, pass);
    let (params, uses) = (d.up(&c.params), d.up(&c.uses));
    let start: Vec<f32> = (0..LEN).map(|_| rng.positive()).collect();
    let (single, double) = (d.up(&start), d.up(&start.iter().map(|&f| f64::from(f)).collect::<Vec<f64>>()));
    for (suffix, into) in [("f32", d.at(&single)), ("f64", d.at(&double))] {
        launch!(d, &format!("log_weight_flows_{suffix}"), (1, 4, 3), 128, 0; pass, d.at(&params), d.at(&uses), into);
        launch!(d, &format!("log_table_flows_{suffix}"), (1, 2), 128, 0;
            pass, d.at(&params) + 3 * 96, d.at(&uses), into);
        launch!(d, &format!("log_density_flows_{suffix}"), (1, 1), 128, 0;
            pass, d.at(&params) + 5 * 96, d.at(&uses), into);
    }
    let (single, double) = (d.down(&single), d.down(&double));

    let mut want_flows: Vec<f64> = start.iter().map(|&f| f.into()).collect();
    for (i, &r) in row_ids.iter().enumerate() {
        let cell = |column: usize| cells[column * cells_capacity + r as usize];
        let table = |at: usize, column: usize| -> Vec<f64> {
            (0..5)
                .map(|u| {
                    if cell(column) == MISSING {
                        0.0
                    } else {
                        f64::from(theta[at + cell(column) as usize * LD + u]).ln()
                    }
                })
                .collect()
        };
        let gauss: Vec<f64> = (0..5)
            .map(|u| {
                let (mean, std) = (f64::from(theta[GAUSS + u]), f64::from(theta[GAUSS + LD + u]));
                let z = (f64::from(f32::from_bits(cell(2))) - mean) / std;
                if cell(2) == MISSING { 0.0 } else { -0.5 * (z * z + std::f64::consts::TAU.ln()) - std.ln() }
            })
            .collect();
        let want = want(&theta, [table(T0, 0), table(T1, 1), table(T0, 3), gauss], root_flow[i]);
        close(got[i], want.root, 1e-12, || format!("row {r}"));
        (0..T0).for_each(|at| want_flows[at] += want.weights[at]);
        for (at, cats, column, flows) in
            [(T0, 6, 0, &want.inputs[0]), (T1, 4, 1, &want.inputs[1]), (T0, 6, 3, &want.inputs[2])]
        {
            for (u, flow) in flows.iter().enumerate() {
                match cell(column) {
                    MISSING => (0..cats)
                        .for_each(|cat| want_flows[at + cat * LD + u] += flow * f64::from(theta[at + cat * LD + u])),
                    cat => want_flows[at + cat as usize * LD + u] += flow,
                }
            }
        }
        for (u, flow) in want.inputs[3].iter().enumerate() {
            let (mean, std) = (f64::from(theta[GAUSS + u]) - 0.25, f64::from(theta[GAUSS + LD + u]));
            let x = f64::from(f32::from_bits(cell(2))) - 0.25;
            let (x, xx) = if cell(2) == MISSING { (mean, mean * mean + std * std) } else { (x, x * x) };
            want_flows[GAUSS + u] += flow * x;
            want_flows[GAUSS + LD + u] += flow * xx;
            want_flows[GAUSS + 2 * LD + u] += flow;
        }
    }
    for at in 0..LEN {
        // Log-values near −1e8 have eight digits less than the rest.
        close(double[at], want_flows[at], 1e-7, || format!("flow {at}"));
        close(single[at].into(), want_flows[at], 1e-6, || format!("flow {at} in f32"));
    }
}

#[test]
fn typical_renormalising_keeps_the_distribution() {
    let d = super::device_or_return!();
    let mut rng = Rng::new(22);
    let mut theta = random_theta(&mut rng);
    theta[..T0].iter_mut().for_each(|t| *t *= 37.0);
    let c = circuit();
    let num_rows = 23;
    let (theta_dev, params, uses) = (d.up(&theta), d.up(&c.params), d.up(&c.uses));
    let masses = d.up(&vec![f64::NAN; num_rows]);
    launch!(d, "fill_f64", 1, 256, 0; d.at(&masses), 1.0f64, num_rows as i64);
    let mut tables = c.params[3..5].to_vec();
    tables[1].partial_at = 64;
    let tables_dev = d.up(&tables);
    let sums = d.up(&vec![f64::NAN; 128]);
    let pass = Pass { theta: d.at(&theta_dev), ..Pass::default() };
    launch!(d, "table_sums_f32", (1, 1, 2), 128, 0; pass, d.at(&tables_dev), 0u64, d.at(&sums));
    launch!(d, "table_masses", (1, 2), 128, 0; d.at(&tables_dev), d.at(&sums), 1.0f64, d.at(&masses));
    let masses_host = d.down(&masses);
    let (values, gains, flows) = (d.fresh::<f64>(c.value_len), d.fresh::<f64>(c.value_len), d.fresh::<f64>(c.flow_len));
    let root_flow = d.up(&[1.0f64]);
    let pass = LogPass {
        values: d.at(&values),
        gains: d.at(&gains),
        flows: d.at(&flows),
        theta: d.at(&theta_dev),
        cells: 0,
        masses: d.at(&masses),
        row_ids: 0,
        root_flow: d.at(&root_flow),
        negligible: 0.0,
        rows: 1,
        capacity: CAPACITY as i32,
        cells_capacity: 0,
        pad: 0,
        pad2: 0,
    };
    let log_partition = up_and_down(&d, &c, pass);
    launch!(d, "renormalize_weights", (1, 3), 256, 0; pass, d.at(&params), d.at(&uses), d.at(&theta_dev));
    launch!(d, "renormalize_tables", (1, 1, 2), 128, 0; d.at(&tables_dev), d.at(&masses), d.at(&theta_dev));
    let got = d.down(&theta_dev);

    let logs = |at: usize| -> Vec<f64> { masses_host[at..at + 5].iter().map(|m| m.ln()).collect() };
    let want = want(&theta, [logs(8), logs(13), logs(8), vec![0.0; 5]], 1.0);
    close(log_partition[0], want.root, 1e-12, || "log Z".into());
    for (at, units, cols) in [(A, 4, 8), (B, 3, 5), (R, 1, 7)] {
        for u in 0..units {
            let flows = &want.weights[at + u * LD..][..cols];
            let total: f64 = flows.iter().sum();
            for (col, flow) in flows.iter().enumerate() {
                close(got[at + u * LD + col].into(), flow / total, 1e-6, || format!("weight {at} [{u}, {col}]"));
            }
        }
    }
    for (at, cats, row) in [(T0, 6, 8), (T1, 4, 13)] {
        for cat in 0..cats {
            for u in 0..5 {
                let want = f64::from(theta[at + cat * LD + u]) / masses_host[row + u];
                close(got[at + cat * LD + u].into(), want, 1e-6, || format!("table {at} [{cat}, {u}]"));
            }
        }
    }
}
