//! Small circuits of many shapes, seeded, with data for them. Whatever a backend can do, it must do on all of these.

use std::sync::Arc;

use anemone::circuit::{
    Categorical, Circuit, CircuitBuilder, DiscreteLogistic, Distribution, Factor, Gaussian, NodeId, NodeKind,
    ParamKind, Params, Slice, SumGroup,
};
use anemone::data::{Batch, Values};
use anemone::rng::Rng;
use anemone::structure::{
    HcltOptions, MutualInformation, PdOptions, RatSpnOptions, Tree, Tying, hclt, hmm, hmm_with, monarch_hmm,
    mutual_information, pd, pdhclt, rat_spn,
};

/// A circuit with parameters to start from.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub circuit: Arc<Circuit>,
    pub params: Params,
}

impl Case {
    pub fn new(name: &str, circuit: Circuit) -> Self {
        let params = Params::random(&circuit, 7, 2.0).unwrap();
        Self { name: name.to_string(), circuit: Arc::new(circuit), params }
    }

    /// Rows without missing cells: categories uniform, numbers normal.
    pub fn batch(&self, rows: usize, seed: u64) -> Batch {
        data_for(&self.circuit, rows, seed)
    }

    /// Rows of which some cells are missing, and the last row whole.
    pub fn batch_with_missing(&self, rows: usize, seed: u64) -> Batch {
        let mut rng = Rng::stream(seed, 99);
        let vars = self.circuit.num_vars();
        let mask: Vec<bool> = (0..rows * vars).map(|_| rng.uniform() < 0.4).collect();
        self.batch(rows, seed).with_missing(|row, var| row + 1 == rows || mask[row * vars + var])
    }

    /// Returns true if every parameter is a weight or a probability.
    pub fn is_discrete(&self) -> bool {
        self.circuit.params().iter().all(|block| match &block.kind {
            ParamKind::Sum { .. } => true,
            ParamKind::Input(distribution) => distribution.is_table(),
        })
    }

    /// The number of categories of every variable; `None` if some variable is a real number.
    pub fn cardinalities(&self) -> Option<Vec<u32>> {
        (0..self.circuit.num_vars()).map(|var| self.num_cats(var)).collect()
    }

    /// The number of categories of a variable; `None` if it is a real number.
    pub fn num_cats(&self, var: usize) -> Option<u32> {
        distribution_of(&self.circuit, var).num_cats()
    }

    /// In how many ways the root can be drawn, latents and values together: what listing them all would cost.
    pub fn num_draws(&self) -> f64 {
        let mut draws: Vec<Vec<f64>> = Vec::new();
        for node in self.circuit.nodes() {
            draws.push(match &node.kind {
                NodeKind::Input { param, .. } => {
                    vec![self.circuit.layout().block(*param).values_per_row as f64; node.units]
                }
                NodeKind::Product { factors } => {
                    let of = |unit: usize, f: &Factor| {
                        draws[f.node.index()][f.map.as_ref().map_or(unit, |m| m[unit] as usize)]
                    };
                    (0..node.units).map(|unit| factors.iter().map(|f| of(unit, f)).product()).collect()
                }
                NodeKind::Sum { groups } => {
                    let of = |s: &Slice| draws[s.node.index()][s.start..s.start + s.units].iter().sum::<f64>();
                    let group = |g: &SumGroup| {
                        vec![g.children.iter().map(of).sum(); self.circuit.params()[g.param.index()].units]
                    };
                    groups.iter().flat_map(group).collect()
                }
            });
        }
        draws[self.circuit.root().index()][0]
    }

    /// Rows whose numbers spread over many decades, up to 1e15 on either side of zero.
    pub fn far_batch(&self, rows: usize, seed: u64) -> Batch {
        let near = self.batch(rows, seed);
        let columns = (0..near.num_vars()).map(|var| match near.column(var) {
            Values::F32(_) => {
                let mut rng = Rng::stream(seed, 1000 + var as u64);
                Values::F32((0..rows).map(|_| (sign(&mut rng) * decades(&mut rng, -3.0, 15.0)) as f32).collect())
            }
            column => column.clone(),
        });
        Batch::from_columns(columns.collect()).unwrap()
    }

    /// The same circuit with densities anywhere and of any width, and the weights as they are.
    pub fn with_densities_anywhere(mut self, seed: u64) -> Self {
        let mut rng = Rng::stream(seed, 77);
        for id in self.circuit.param_ids() {
            let ParamKind::Input(distribution) = &self.circuit.params()[id.index()].kind else { continue };
            for unit in (0..self.circuit.layout().block(id).units()).filter(|_| distribution.num_cats().is_none()) {
                let row = [sign(&mut rng) * decades(&mut rng, -2.0, 6.0), decades(&mut rng, -2.0, 4.0)];
                self.params.set_row(id, unit, &row.map(|v| v as f32)).unwrap();
            }
        }
        self
    }

    /// Every assignment of a discrete circuit, one row each.
    pub fn all_worlds(&self) -> Option<Batch> {
        let cats = self.cardinalities()?;
        let count = cats.iter().map(|&c| c as usize).product::<usize>();
        if count > 5000 {
            return None;
        }
        let mut rows: Vec<u32> = Vec::with_capacity(count * cats.len());
        for world in 0..count {
            let mut rest = world;
            for &c in &cats {
                rows.push((rest % c as usize) as u32);
                rest /= c as usize;
            }
        }
        Some(Batch::from_rows(&rows, cats.len()).unwrap())
    }
}

fn sign(rng: &mut Rng) -> f64 {
    [1.0, -1.0][rng.below(2)]
}

/// A number between two powers of ten, each decade as likely as any other.
fn decades(rng: &mut Rng, from: f64, to: f64) -> f64 {
    10f64.powf(from + (to - from) * rng.uniform())
}

fn distribution_of(circuit: &Circuit, var: usize) -> Arc<dyn Distribution> {
    let found = circuit.nodes().iter().find_map(|node| match &node.kind {
        NodeKind::Input { var: v, param } if *v == var => match &circuit.params()[param.index()].kind {
            ParamKind::Input(distribution) => Some(distribution.clone()),
            ParamKind::Sum { .. } => None,
        },
        _ => None,
    });
    found.expect("every variable has an input")
}

/// Random rows that fit a circuit, in columns of every type that holds them.
pub fn data_for(circuit: &Circuit, rows: usize, seed: u64) -> Batch {
    let columns = (0..circuit.num_vars()).map(|var| {
        let mut rng = Rng::stream(seed, var as u64);
        let distribution = distribution_of(circuit, var);
        let Some(cats) = distribution.num_cats() else {
            return Values::F32((0..rows).map(|_| (1.5 * rng.normal()) as f32).collect());
        };
        let values: Vec<u32> = (0..rows).map(|_| rng.below(cats as usize) as u32).collect();
        match var % 3 {
            0 if cats <= 256 => Values::U8(values.iter().map(|&v| v as u8).collect()),
            1 => Values::U16(values.iter().map(|&v| v as u16).collect()),
            _ => Values::U32(values),
        }
    });
    Batch::from_columns(columns.collect()).unwrap()
}

/// Every hand-made shape, every structure of the crate and some random ones.
pub fn all() -> Vec<Case> {
    let mut cases = vec![
        Case::new("one input", one_input()),
        Case::new("mixture of inputs", mixture_of_inputs()),
        Case::new("product at the root", product_root()),
        Case::new("tied hmm", tied_hmm(5, 3, 4)),
        Case::new("tree", tree()),
        Case::new("shared dag", shared_dag(4, 2, 3)),
        Case::new("grouped sum", grouped()),
        Case::new("mapped product", mapped()),
        Case::new("same child twice", same_child_twice()),
        Case::new("mixed inputs", mixed()),
        Case::new("wide product", wide_product(12, 3)),
        Case::new("a unit nobody uses", unused_unit()),
        Case::new("chains layer by layer", layered_chains()),
    ];
    cases.extend(structures(3, 4));
    cases.extend((0..6).map(super::random::categorical));
    cases
}

/// Every structure of the crate, with `latents` units where it takes any number and `cats` categories.
pub fn structures(latents: usize, cats: u32) -> Vec<Case> {
    let table = |_| -> Arc<dyn Distribution> { Categorical::new(cats).unwrap() };
    let random = RatSpnOptions { latents, depth: 2, repetitions: 2, pieces: 2, seed: 4 };
    let sparse =
        PdOptions { max_product_connections: Some(1), block_size: Some(1), ..PdOptions::new(vec![1, 2], latents) };
    let monarch = if latents.is_multiple_of(4) { (4, latents / 4) } else { (2, latents) };
    vec![
        Case::new("hmm", hmm(6, latents, table(0)).unwrap()),
        Case::new("hmm untied", hmm_with(5, latents, table(0), Tying::Inhomogeneous).unwrap()),
        Case::new("monarch hmm", monarch_hmm(4, monarch, table(0)).unwrap()),
        learned_tree("hclt", latents, cats, HcltOptions::default()),
        learned_tree(
            "hclt with tied inputs",
            latents,
            cats,
            HcltOptions { tie_inputs: true, ..HcltOptions::default() },
        ),
        learned_tree("mixture of hclts", latents, cats, HcltOptions { components: 3, ..HcltOptions::default() }),
        Case::new("pd", pd(&[2, 4], &PdOptions::new(vec![1, 2], latents), table).unwrap()),
        Case::new("pd with few products", pd(&[2, 6], &sparse, table).unwrap()),
        chunked_trees(12, latents, cats),
        Case::new("rat-spn", rat_spn(6, &random, table).unwrap()),
    ]
}

/// An HCLT over nine variables, its tree learned from data in which neighbours resemble each other.
pub fn learned_tree(name: &str, latents: usize, cats: u32, options: HcltOptions) -> Case {
    let information = mutual_information(&chained_data(9, cats, 21), MutualInformation::Counts).unwrap();
    let tree = Tree::chow_liu(&information).unwrap();
    Case::new(name, hclt(&tree, latents, |_| Categorical::new(cats).unwrap(), options).unwrap())
}

/// A PDHCLT over a sequence in chunks of three.
pub fn chunked_trees(length: usize, latents: usize, cats: u32) -> Case {
    let (data, options) = (chained_data(length, cats, 21), PdOptions::new(vec![3], latents));
    let table = |_| -> Arc<dyn Distribution> { Categorical::new(cats).unwrap() };
    Case::new("pdhclt", pdhclt(&data, &[length], &options, MutualInformation::Counts, table).unwrap())
}

/// Rows in which every variable copies the one before it half of the time.
pub fn chained_data(num_vars: usize, cats: u32, seed: u64) -> Batch {
    let mut rng = Rng::new(seed);
    let mut values = Vec::new();
    for _ in 0..200 {
        let mut value = 0;
        for _ in 0..num_vars {
            value = if rng.below(2) == 0 { value } else { rng.below(cats as usize) as u32 };
            values.push(value);
        }
    }
    Batch::from_rows(&values, num_vars).unwrap()
}

pub fn categorical(circuit: &mut CircuitBuilder, var: usize, units: usize, cats: u32) -> NodeId {
    let param = circuit.input_param(units, Categorical::new(cats).unwrap()).unwrap();
    circuit.input(var, param).unwrap()
}

/// A dense sum with a block of its own.
pub fn sum(circuit: &mut CircuitBuilder, units: usize, children: &[NodeId]) -> NodeId {
    let cols = children.iter().map(|&c| circuit.units(c)).sum();
    let param = circuit.sum_param(units, cols).unwrap();
    circuit.sum(children, param).unwrap()
}

/// Two chains that share their transition, built layer by layer: their sums, products and sums above lie side by side.
fn layered_chains() -> Circuit {
    let mut c = CircuitBuilder::new(4);
    let transition = c.sum_param(3, 3).unwrap();
    let last: Vec<NodeId> = (0..2).map(|chain| categorical(&mut c, 2 * chain + 1, 3, 3)).collect();
    let mut products = Vec::new();
    for (chain, last) in last.into_iter().enumerate() {
        let before = c.product(&[last]).unwrap();
        let sum = c.sum(&[before], transition).unwrap();
        let emission = categorical(&mut c, 2 * chain, 3, 3);
        products.push(c.product(&[emission, sum]).unwrap());
    }
    let tops: Vec<NodeId> = products.into_iter().map(|product| sum(&mut c, 1, &[product])).collect();
    c.product(&tops).unwrap();
    c.finish().unwrap()
}

/// A chain of two steps with shared weights, each of which emits so many bytes at once: their probabilities multiply to
/// far below the range of `f32`.
pub fn many_bytes_a_step(bytes: usize) -> Circuit {
    let mut c = CircuitBuilder::new(3 * bytes);
    let transition = c.sum_param(4, 4).unwrap();
    let emission = |c: &mut CircuitBuilder, step: usize| -> Vec<NodeId> {
        (0..bytes).map(|byte| categorical(c, step * bytes + byte, 4, 256)).collect()
    };
    let factors = emission(&mut c, 2);
    let mut below = c.product(&factors).unwrap();
    for step in [1, 0] {
        let mut factors = vec![c.sum(&[below], transition).unwrap()];
        factors.extend(emission(&mut c, step));
        below = c.product(&factors).unwrap();
    }
    sum(&mut c, 1, &[below]);
    c.finish().unwrap()
}

fn one_input() -> Circuit {
    let mut c = CircuitBuilder::new(1);
    categorical(&mut c, 0, 1, 3);
    c.finish().unwrap()
}

fn mixture_of_inputs() -> Circuit {
    let mut c = CircuitBuilder::new(1);
    let children = [categorical(&mut c, 0, 2, 4), categorical(&mut c, 0, 3, 4)];
    sum(&mut c, 1, &children);
    c.finish().unwrap()
}

fn product_root() -> Circuit {
    let mut c = CircuitBuilder::new(3);
    let x = [categorical(&mut c, 0, 3, 2), categorical(&mut c, 1, 1, 4), categorical(&mut c, 2, 2, 3)];
    let factors = [sum(&mut c, 1, &x[..1]), x[1], sum(&mut c, 1, &x[2..])];
    c.product(&factors).unwrap();
    c.finish().unwrap()
}

/// Emission and transition tied over time; the transition also mixes the last emission.
pub fn tied_hmm(length: usize, states: usize, cats: u32) -> Circuit {
    let mut c = CircuitBuilder::new(length);
    let emission = c.input_param(states, Categorical::new(cats).unwrap()).unwrap();
    let transition = c.sum_param(states, states).unwrap();
    let mut here = c.input(length - 1, emission).unwrap();
    for var in (0..length - 1).rev() {
        let next = c.sum(&[here], transition).unwrap();
        let emit = c.input(var, emission).unwrap();
        here = c.product(&[emit, next]).unwrap();
    }
    sum(&mut c, 1, &[here]);
    c.finish().unwrap()
}

fn tree() -> Circuit {
    let mut c = CircuitBuilder::new(5);
    let x: Vec<NodeId> = (0..5).map(|v| categorical(&mut c, v, 3, 2 + v as u32 % 3)).collect();
    let below = c.product(&[x[3], x[4]]).unwrap();
    let below = sum(&mut c, 3, &[below]);
    let left = c.product(&[x[1], below]).unwrap();
    let left = sum(&mut c, 3, &[left]);
    let top = c.product(&[x[0], left, x[2]]).unwrap();
    sum(&mut c, 1, &[top]);
    c.finish().unwrap()
}

/// Every interval mixes every way to cut it in two; intervals are built once and shared.
pub fn shared_dag(vars: usize, units: usize, cats: u32) -> Circuit {
    let mut c = CircuitBuilder::new(vars);
    let mut region = vec![vec![None; vars + 1]; vars];
    for (v, row) in region.iter_mut().enumerate() {
        row[v + 1] = Some(categorical(&mut c, v, units, cats));
    }
    for width in 2..=vars {
        for low in 0..=vars - width {
            let high = low + width;
            let cut = |mid: usize| [region[low][mid].unwrap(), region[mid][high].unwrap()];
            let products: Vec<NodeId> = (low + 1..high).map(|mid| c.product(&cut(mid)).unwrap()).collect();
            region[low][high] = Some(sum(&mut c, if width == vars { 1 } else { units }, &products));
        }
    }
    c.finish().unwrap()
}

/// Block-diagonal sums whose blocks are partly tied, within one node and between two.
fn grouped() -> Circuit {
    let mut c = CircuitBuilder::new(2);
    let x = [categorical(&mut c, 0, 4, 3), categorical(&mut c, 1, 4, 3)];
    let (tied, free) = (c.sum_param(2, 2).unwrap(), c.sum_param(3, 6).unwrap());
    let slice = |node, start, units| Slice { node, start, units };
    let blocks = |node| {
        vec![
            SumGroup { children: vec![slice(node, 0, 2)], param: tied },
            SumGroup { children: vec![slice(node, 2, 2)], param: tied },
        ]
    };
    let first = c.grouped_sum(blocks(x[0])).unwrap();
    let second = c.grouped_sum(blocks(x[1])).unwrap();
    let both = c.product(&[first, second]).unwrap();
    let other = c.product(&x).unwrap();
    let top = c
        .grouped_sum(vec![
            SumGroup { children: vec![slice(both, 1, 3), slice(other, 0, 3)], param: free },
            SumGroup { children: vec![slice(other, 2, 2)], param: tied },
        ])
        .unwrap();
    sum(&mut c, 1, &[top]);
    c.finish().unwrap()
}

/// Products that permute, repeat and leave out units of their factors.
fn mapped() -> Circuit {
    let mut c = CircuitBuilder::new(3);
    let x = [categorical(&mut c, 0, 2, 3), categorical(&mut c, 1, 3, 2), categorical(&mut c, 2, 4, 2)];
    let factor = |node, map: &[u32]| Factor { node, map: Some(Arc::from(map)) };
    let wide = c.mapped_product(vec![factor(x[0], &[0, 0, 1, 1, 0]), factor(x[1], &[2, 1, 0, 2, 2])]).unwrap();
    let mixed = sum(&mut c, 4, &[wide]);
    let top = c.mapped_product(vec![factor(mixed, &[3, 2, 1, 0]), Factor { node: x[2], map: None }]).unwrap();
    sum(&mut c, 1, &[top]);
    c.finish().unwrap()
}

/// A sum over overlapping slices of one child, and over a sum.
fn same_child_twice() -> Circuit {
    let mut c = CircuitBuilder::new(1);
    let x = categorical(&mut c, 0, 3, 4);
    let slice = |node, start, units| Slice { node, start, units };
    let param = c.sum_param(2, 5).unwrap();
    let children = vec![slice(x, 0, 3), slice(x, 1, 2)];
    let twice = c.grouped_sum(vec![SumGroup { children, param }]).unwrap();
    sum(&mut c, 1, &[twice, x]);
    c.finish().unwrap()
}

/// A table, two densities and a discrete logistic; the densities tied between two variables.
pub fn mixed() -> Circuit {
    let mut c = CircuitBuilder::new(4);
    let density = c.input_param(3, Gaussian::new(0.1, 0.5).unwrap()).unwrap();
    let logistic = c.input_param(3, DiscreteLogistic::new(8, (-1.0, 1.0), 0.05).unwrap()).unwrap();
    let x = [
        categorical(&mut c, 0, 3, 3),
        c.input(1, density).unwrap(),
        c.input(2, density).unwrap(),
        c.input(3, logistic).unwrap(),
    ];
    let left = c.product(&x[..2]).unwrap();
    let left = sum(&mut c, 3, &[left]);
    let right = c.product(&x[2..]).unwrap();
    let top = c.product(&[left, right]).unwrap();
    sum(&mut c, 1, &[top]);
    c.finish().unwrap()
}

pub fn wide_product(vars: usize, units: usize) -> Circuit {
    let mut c = CircuitBuilder::new(vars);
    let x: Vec<NodeId> = (0..vars).map(|v| categorical(&mut c, v, units, 3)).collect();
    let all = c.product(&x).unwrap();
    sum(&mut c, 1, &[all]);
    c.finish().unwrap()
}

/// Unit 2 of the input is in no slice: no flow and no top-down probability ever reaches it.
fn unused_unit() -> Circuit {
    let mut c = CircuitBuilder::new(1);
    let x = categorical(&mut c, 0, 3, 2);
    let param = c.sum_param(1, 2).unwrap();
    let children = vec![Slice { node: x, start: 0, units: 2 }];
    c.grouped_sum(vec![SumGroup { children, param }]).unwrap();
    c.finish().unwrap()
}
