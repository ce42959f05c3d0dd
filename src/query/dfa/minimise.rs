//! The smallest automaton that accepts the same sequences.
//!
//! States that no sequence tells apart become one (Moore: split by acceptance, then by the blocks of the successors,
//! until nothing splits); then classes of symbols that no state tells apart do. Only states that can be reached are
//! expected, which is what `explore` makes.

use std::collections::HashMap;

use super::Dfa;

impl Dfa {
    /// The same language in the fewest states and classes.
    pub fn minimise(&self) -> Self {
        let block_of = blocks(self);
        let num_blocks = block_of.iter().max().map_or(0, |&block| block as usize + 1);
        let mut member = vec![0; num_blocks];
        block_of.iter().enumerate().for_each(|(state, &block)| member[block as usize] = state);
        // Columns that are the same for all blocks are one class.
        let mut classes: HashMap<Vec<u32>, u32> = HashMap::new();
        let column = |class: usize| -> Vec<u32> {
            member.iter().map(|&state| block_of[self.next_of_class(state, class)]).collect()
        };
        let mut columns = Vec::new();
        let class_to: Vec<u32> = (0..self.num_classes)
            .map(|class| {
                let column = column(class);
                *classes.entry(column.clone()).or_insert_with(|| {
                    columns.push(column);
                    columns.len() as u32 - 1
                })
            })
            .collect();
        Self {
            class_of: self.class_of.iter().map(|&class| class_to[class as usize]).collect(),
            num_classes: columns.len(),
            next: (0..num_blocks).flat_map(|block| columns.iter().map(move |column| column[block])).collect(),
            accepting: member.iter().map(|&state| self.accepting[state]).collect(),
            start: block_of[self.start()],
        }
    }
}

/// The block of every state: two share one if no sequence tells them apart.
fn blocks(dfa: &Dfa) -> Vec<u32> {
    let mut block_of: Vec<u32> = dfa.accepting.iter().map(|&accepting| u32::from(accepting)).collect();
    let mut num_blocks = 0;
    loop {
        let mut numbers: HashMap<(u32, Vec<u32>), u32> = HashMap::new();
        let split: Vec<u32> = (0..dfa.num_states())
            .map(|state| {
                let after = (0..dfa.num_classes).map(|class| block_of[dfa.next_of_class(state, class)]).collect();
                let fresh = numbers.len() as u32;
                *numbers.entry((block_of[state], after)).or_insert(fresh)
            })
            .collect();
        let found = numbers.len();
        block_of = split;
        if found == num_blocks {
            return block_of;
        }
        num_blocks = found;
    }
}
