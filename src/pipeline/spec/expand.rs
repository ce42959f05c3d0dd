//! `${NAME}` in paths: where the data lies differs between machines, what is learned from it does not.

use crate::error::{Error, Result};

/// The folder of the data sets, by convention of the pipelines in this repository.
pub const DATA_VARIABLE: &str = "ANEMONE_DATA";

/// A path with every `${NAME}` replaced by the environment variable of that name.
pub fn expand_path(path: &str) -> Result<String> {
    expand_with(path, |name| std::env::var(name).ok())
}

fn expand_with(path: &str, lookup: impl Fn(&str) -> Option<String>) -> Result<String> {
    let mut expanded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(start) = rest.find("${") {
        let after = &rest[start + 2..];
        let Some(end) = after.find('}') else {
            return Err(Error::option(format!("{path}: `${{` without its `}}`")));
        };
        let name = &after[..end];
        let Some(value) = lookup(name) else {
            let remedy = match name {
                DATA_VARIABLE => "it names the folder that holds the data sets (wikitext2, images32, …)",
                _ => "a path takes its value from the environment",
            };
            return Err(Error::option(format!(
                "{path}: the variable {name} is not set: {remedy}; set it, or write the path"
            )));
        };
        expanded.push_str(&rest[..start]);
        expanded.push_str(&value);
        rest = &after[end + 1..];
    }
    expanded.push_str(rest);
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_and_their_values_are_not_expanded_again() {
        let lookup = |name: &str| match name {
            "A" => Some("/data".to_string()),
            "B" => Some("${A}".to_string()),
            _ => None,
        };
        assert_eq!(expand_with("${A}/x-*.parquet", lookup).unwrap(), "/data/x-*.parquet");
        assert_eq!(expand_with("${A}${A}/${B}", lookup).unwrap(), "/data/data/${A}");
        assert_eq!(expand_with("$A/{x}", lookup).unwrap(), "$A/{x}");
        let error = expand_with("${C}/x", lookup).unwrap_err().to_string();
        assert!(error.contains("the variable C is not set"), "{error}");
        let error = expand_with("${ANEMONE_DATA}/x", lookup).unwrap_err().to_string();
        assert!(error.contains("the folder that holds the data sets"), "{error}");
        assert!(expand_with("${A/x", lookup).is_err());
    }
}
