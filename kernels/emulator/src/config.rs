//! What the emulator does, from environment variables. All begin with `ANEMONE_EMULATOR_`; see the README beside `src`.

use std::path::PathBuf;

/// How streams make progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamMode {
    /// Every call runs at once, in the order of the calls. Hides all ordering mistakes; the easiest to debug.
    Eager,
    /// An operation runs only when somebody is entitled to its result, and then only what that result needs.
    /// Finds a consumer that does not wait for its producer.
    Lazy,
    /// As `Lazy`, but before anything is handed over, all *other* streams run as far as they may, the youngest first.
    /// Finds a producer that overwrites what a consumer has not yet read.
    OthersFirst,
}

/// Settings of one emulated machine.
#[derive(Debug, Clone)]
pub struct Config {
    /// `DEVICES`: how many; 0 is allowed. Default 1.
    pub devices: usize,
    /// `MEMORY`: bytes of each device, with `K`, `M` or `G`. Default 1 G.
    pub memory: u64,
    /// `STREAMS`: `eager`, `lazy` or `others-first`. Default eager.
    pub streams: StreamMode,
    /// `COUNTERS`: file that gets one line of JSON when the process ends. Default none: nothing is counted.
    pub counters: Option<PathBuf>,
    /// `LOG`: file that gets the reports that also go to standard error.
    pub log: Option<PathBuf>,
    /// `FAIL_ALLOC`: the n-th device allocation of the process, from 1, fails for want of memory.
    pub fail_alloc: Option<u64>,
    /// `FAIL_INIT`: `cuInit` answers this code.
    pub fail_init: Option<i32>,
    /// `DRIVER_VERSION`: what `cuDriverGetVersion` answers; PTX newer than that is refused. Default 12080.
    pub driver_version: i32,
    /// `POOLS`: 0 makes the device claim that it has no memory pools, so that allocation is not stream-ordered. Default
    /// 1.
    pub pools: bool,
    /// `CHECK_WRITTEN`: reads of memory that was never written are faults. Default 1.
    pub check_written: bool,
    /// `CHECK_SHARED`: races in shared memory are faults. Default 1.
    pub check_shared: bool,
    /// `CHECK_LANES`: races between lanes of a warp in shared memory are faults, if `CHECK_SHARED` is on. Default 1.
    pub check_lanes: bool,
    /// `CHECK_GLOBAL`: races between blocks of a launch, or warps of a block, in global memory are faults. Default 1.
    pub check_global: bool,
    /// `REVERSE`: 1 runs blocks, and warps in a block, last first. Default 0.
    pub reverse: bool,
    /// `MAX_STEPS`: instructions of all warps of a launch, after which it is ended as a hang. Default 4 000 000 000.
    pub max_steps: u64,
    /// `WAIT_SECONDS`: how long a collective waits for its other ranks before it is ended as a hang. Default 60.
    pub wait_seconds: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            devices: 1,
            memory: 1 << 30,
            streams: StreamMode::Eager,
            counters: None,
            log: None,
            fail_alloc: None,
            fail_init: None,
            driver_version: 12080,
            pools: true,
            check_written: true,
            check_shared: true,
            check_lanes: true,
            check_global: true,
            reverse: false,
            max_steps: 4_000_000_000,
            wait_seconds: 60,
        }
    }
}

impl Config {
    /// Reads the environment. A value that makes no sense ends the process: a test must not run with another setting
    /// than the one it asked for.
    pub fn from_env() -> Config {
        Config::from_lookup(|name| std::env::var(format!("ANEMONE_EMULATOR_{name}")).ok()).unwrap_or_else(|what| {
            eprintln!("cuda emulator: {what}");
            std::process::exit(2);
        })
    }

    fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Result<Config, String> {
        let default = Config::default();
        let number = |name: &str, default: u64| match get(name) {
            None => Ok(default),
            Some(text) => bytes(&text).ok_or(format!("ANEMONE_EMULATOR_{name} = {text}: not a number")),
        };
        let some = |name: &str| get(name).map(|_| number(name, 0)).transpose();
        let yes = |name: &str, default: bool| Ok::<_, String>(number(name, u64::from(default))? != 0);
        let streams = match get("STREAMS").as_deref() {
            None | Some("eager") => StreamMode::Eager,
            Some("lazy") => StreamMode::Lazy,
            Some("others-first") => StreamMode::OthersFirst,
            Some(other) => {
                return Err(format!("ANEMONE_EMULATOR_STREAMS = {other}: must be eager, lazy or others-first"));
            }
        };
        Ok(Config {
            devices: number("DEVICES", default.devices as u64)? as usize,
            memory: number("MEMORY", default.memory)?,
            streams,
            counters: get("COUNTERS").map(PathBuf::from),
            log: get("LOG").map(PathBuf::from),
            fail_alloc: some("FAIL_ALLOC")?,
            fail_init: some("FAIL_INIT")?.map(|v| v as i32),
            driver_version: number("DRIVER_VERSION", default.driver_version as u64)? as i32,
            pools: yes("POOLS", default.pools)?,
            check_written: yes("CHECK_WRITTEN", default.check_written)?,
            check_shared: yes("CHECK_SHARED", default.check_shared)?,
            check_lanes: yes("CHECK_LANES", default.check_lanes)?,
            check_global: yes("CHECK_GLOBAL", default.check_global)?,
            reverse: yes("REVERSE", default.reverse)?,
            max_steps: number("MAX_STEPS", default.max_steps)?,
            wait_seconds: number("WAIT_SECONDS", default.wait_seconds)?,
        })
    }
}

/// A whole number, perhaps followed by K, M or G.
fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.chars().last()? {
        'K' => (&text[..text.len() - 1], 10),
        'M' => (&text[..text.len() - 1], 20),
        'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_shl(shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_read_and_nonsense_is_refused() {
        let config = Config::from_lookup(|name| {
            let value = match name {
                "DEVICES" => "0",
                "MEMORY" => "64M",
                "STREAMS" => "others-first",
                "CHECK_SHARED" => "0",
                "FAIL_ALLOC" => "3",
                _ => return None,
            };
            Some(value.to_owned())
        })
        .unwrap();
        assert_eq!((config.devices, config.memory, config.fail_alloc), (0, 64 << 20, Some(3)));
        assert_eq!(config.streams, StreamMode::OthersFirst);
        assert!(!config.check_shared && config.check_global);
        let broken = Config::from_lookup(|name| (name == "STREAMS").then(|| "sometimes".to_owned()));
        assert!(broken.unwrap_err().contains("must be eager"));
    }
}
