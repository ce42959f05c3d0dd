//! A Chromium without a window and without a network, where there is one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Long: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(180);

/// A browser that has shown that it can take a picture.
#[derive(Debug)]
pub struct Browser {
    program: PathBuf,
}

impl Browser {
    /// The one that `ANEMONE_CHROMIUM` names, or one on the path; `Err` says why there is none.
    pub fn find(scratch: &Path) -> Result<Self, String> {
        let named = std::env::var_os("ANEMONE_CHROMIUM").filter(|name| !name.is_empty());
        let programs: Vec<PathBuf> = match &named {
            Some(name) => vec![name.into()],
            None => ["chromium", "chromium-browser", "google-chrome"].map(PathBuf::from).into(),
        };
        let starts = |program: &PathBuf| {
            let version = Command::new(program).arg("--version").stdin(Stdio::null()).output();
            version.is_ok_and(|output| output.status.success())
        };
        let Some(program) = programs.into_iter().find(starts) else { return Err("there is no Chromium".into()) };
        // Some are confined and cannot read or write where tests do: nothing that we could test here.
        let (page, picture) = (scratch.join("probe.html"), scratch.join("probe.png"));
        std::fs::write(&page, "<!DOCTYPE html><p>probe").map_err(|e| e.to_string())?;
        let browser = Self { program };
        browser.screenshot(&page, &picture, (300, 300)).map_err(|why| format!("Chromium takes no picture: {why}"))?;
        Ok(browser)
    }

    /// A picture of a page in a window of this size.
    pub fn screenshot(&self, page: &Path, picture: &Path, size: (u32, u32)) -> Result<(), String> {
        self.run(page, size, &[format!("--screenshot={}", picture.display())])?;
        if picture.exists() { Ok(()) } else { Err("it wrote no file".into()) }
    }

    /// The document after its scripts have run.
    pub fn dump(&self, page: &Path, size: (u32, u32)) -> Result<String, String> {
        self.run(page, size, &["--dump-dom".into()])
    }

    fn run(&self, page: &Path, (width, height): (u32, u32), what: &[String]) -> Result<String, String> {
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let (out, err) = (folder.path().join("out"), folder.path().join("err"));
        let file = |path: &Path| std::fs::File::create(path).map_err(|e| e.to_string());
        let mut child = Command::new(&self.program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"])
            .args(["--no-first-run", "--force-device-scale-factor=1"])
            .arg("--proxy-server=127.0.0.1:9") // nothing listens there: whatever is fetched is not found
            .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
            .arg(format!("--window-size={width},{height}"))
            .args(what)
            .arg(format!("file://{}", page.display()))
            .stdin(Stdio::null())
            .stdout(file(&out)?)
            .stderr(file(&err)?)
            .spawn()
            .map_err(|e| e.to_string())?;
        let start = Instant::now();
        let status = loop {
            match child.try_wait().map_err(|e| e.to_string())? {
                Some(status) => break status,
                None if start.elapsed() > PATIENCE => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("it did not end within {} s", PATIENCE.as_secs()));
                }
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        let text =
            |path: &Path| std::fs::read(path).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
        if status.success() { Ok(text(&out)) } else { Err(format!("{status}: {}", text(&err))) }
    }
}
