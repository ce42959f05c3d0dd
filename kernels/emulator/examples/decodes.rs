//! Says for each PTX file which of its kernels the emulator can execute.
//!
//!     cargo run -p anemone-cuda-emulator --example decodes -- kernels/ptx/*.ptx

use std::collections::HashMap;
use std::process::ExitCode;

use cuda_emulator::decode::decode;
use cuda_emulator::parse::parse;

fn main() -> ExitCode {
    let mut failed = false;
    for path in std::env::args().skip(1) {
        let module = match std::fs::read_to_string(&path).map_err(|e| e.to_string()).and_then(|text| parse(&text)) {
            Ok(module) => module,
            Err(what) => {
                println!("{path}: {what}");
                failed = true;
                continue;
            }
        };
        let places: HashMap<String, u64> = module.globals.iter().map(|v| (v.name.clone(), 1 << 40)).collect();
        let mut entries: Vec<_> = module.entries.values().collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            match decode(&module, &places, entry) {
                Ok(kernel) => println!("{path}: {}: {} instructions", kernel.name, kernel.code.len()),
                Err(what) => {
                    println!("{path}: {}: {what}", entry.name);
                    failed = true;
                }
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
