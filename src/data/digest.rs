//! Names for content: SHA-256 in hexadecimal.

use std::fmt::Write;

use sha2::{Digest as _, Sha256};

/// A digest in the making. Parts are kept apart: `["ab", "c"]` and `["a", "bc"]` differ.
#[derive(Clone, Debug, Default)]
pub struct Digest {
    state: Sha256,
}

impl Digest {
    /// Of nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in one part.
    pub fn part(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.update(bytes);
        self
    }

    /// Takes in one part, in place.
    pub fn update(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.state.update((bytes.len() as u64).to_le_bytes());
        self.state.update(bytes);
    }

    /// 64 hexadecimal digits.
    pub fn finish(self) -> String {
        hex(&self.state.finalize())
    }

    /// Its first 64 bits, as a number.
    pub fn number(self) -> u64 {
        let bytes: [u8; 32] = self.state.finalize().into();
        u64::from_be_bytes(*bytes.first_chunk().expect("32 bytes"))
    }

    /// The plain SHA-256 of some bytes, as `sha256sum` prints it.
    pub fn of(bytes: &[u8]) -> String {
        hex(&Sha256::digest(bytes))
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}"); // writing to a string cannot fail
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_sha256_and_parts_are_kept_apart() {
        assert_eq!(Digest::of(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_ne!(Digest::new().part("ab").part("c").finish(), Digest::new().part("a").part("bc").finish());
        assert_eq!(Digest::new().part("ab").finish(), Digest::new().part([b'a', b'b']).finish());
        let of_name = || Digest::new().part("a.txt");
        assert_eq!(format!("{:016x}", of_name().number()), of_name().finish()[..16]);
    }
}
