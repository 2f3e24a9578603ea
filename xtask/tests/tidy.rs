//! House rules that a machine can check.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

const FILE_LINES_MAX: usize = 600;

#[test]
fn files_stay_readable() {
    for file in xtask::rust_files(&xtask::root().join("crates")) {
        let lines = std::fs::read_to_string(&file).unwrap().lines().count();
        assert!(
            lines <= FILE_LINES_MAX,
            "{} has {lines} lines, the most is {FILE_LINES_MAX}",
            file.display()
        );
    }
}

#[test]
fn nothing_is_left_for_later() {
    let markers = ["TO", "FIX", "XX"].map(|head| {
        format!(
            "{head}{}",
            if head == "TO" {
                "DO"
            } else if head == "FIX" {
                "ME"
            } else {
                "X"
            }
        )
    });
    for file in xtask::rust_files(&xtask::root().join("crates")) {
        let text = std::fs::read_to_string(&file).unwrap();
        for marker in &markers {
            assert!(!text.contains(marker.as_str()), "{} contains {marker}", file.display());
        }
    }
}
