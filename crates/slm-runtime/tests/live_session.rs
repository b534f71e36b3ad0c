//! A session that runs while another process harms the blobs of its composition in place: it goes on with the bytes that were verified.
#![cfg(unix)]

mod common;

use std::path::Path;
use std::process::Command;

use common::{NOW, TOKENS, bits, blob_path, code, compose, runtime, stocked};
use slm_manifest::ExecutionProfile;
use slm_runtime::runtime::{Reference, no_patience};
use slm_store::FsStorage;

/// Lets another process do something to a file, against its mode.
fn harm(file: &Path, how: &str) {
    let script = format!("chmod u+w \"$0\" && {how} && chmod a-w \"$0\"");
    let status = Command::new("sh").arg("-c").arg(script).arg(file).status().expect("a shell");
    assert!(status.success(), "{how}");
}

#[test]
fn a_running_session_serves_what_was_verified_or_nothing() {
    let reference = Reference::Text("k".to_owned());
    for how in [
        // Overwritten where it is, to the same length; cut; cut to nothing; removed.
        "size=$(wc -c < \"$0\") && head -c \"$size\" /dev/zero | dd of=\"$0\" conv=notrunc status=none",
        "truncate -s 4096 \"$0\"",
        ": > \"$0\"",
        "cp \"$0\" \"$0.aside\" && rm \"$0\" && mv \"$0.aside\" \"$0\" && : > \"$0\"",
    ] {
        for of_base in [true, false] {
            let folder = tempfile::tempdir().expect("a folder");
            let storage = FsStorage::open(folder.path().join("store"));
            let (first, stock) = stocked(storage.clone());
            compose(&first, "k", &[("kjv", 1.0)]);
            first.activate_composition(&reference, NOW).expect("active");
            drop(first);

            // From the files, in a runtime of its own.
            let live = runtime(storage.clone());
            let mut undisturbed = live.session(ExecutionProfile::DEFAULT).expect("a session");
            let expected =
                [bits(&mut undisturbed, &TOKENS[..5], 4), bits(&mut undisturbed, &TOKENS[5..], 4)];
            let mut session = live.session(ExecutionProfile::DEFAULT).expect("a session");
            let mut generation =
                live.generation(ExecutionProfile::DEFAULT, &mut no_patience).expect("one");
            assert_eq!(bits(&mut session, &TOKENS[..5], 4), expected[0]);
            assert_eq!(bits(generation.session(), &TOKENS[..5], 4), expected[0]);

            let blob = if of_base { stock.base.blob } else { stock.kjv.blob };
            harm(&storage.root().join(blob_path(blob)), how);

            // What was begun goes on to the same bits, under the same id, from the first token after on.
            assert_eq!(bits(&mut session, &TOKENS[5..], 4), expected[1], "{how}");
            assert_eq!(bits(generation.session(), &TOKENS[5..], 4), expected[1], "{how}");
            assert_eq!(session.composition().id(), generation.composition().id());
            // And so does what begins now on what is in memory.
            let mut again = live.session(ExecutionProfile::DEFAULT).expect("a session");
            assert_eq!(bits(&mut again, &TOKENS[..5], 4), expected[0], "{how}");
            drop((session, generation, again, undisturbed));

            // Whoever opens it anew, or switches to it, is told.
            let fresh = runtime(storage.clone());
            assert_eq!(code(fresh.session(ExecutionProfile::DEFAULT)), "blob-damaged", "{how}");
            let bare = Reference::Text("bare".to_owned());
            assert!(live.activate_composition(&bare, NOW).expect("a switch").changed, "{how}");
            let back = live.activate_composition(&reference, NOW);
            if of_base {
                // The base is in memory, and hashed there once more.
                assert!(back.expect("a switch").changed, "{how}");
                let mut session = live.session(ExecutionProfile::DEFAULT).expect("a session");
                assert_eq!(bits(&mut session, &TOKENS[..5], 4), expected[0], "{how}");
            } else {
                assert_eq!(code(back), "blob-damaged", "{how}");
            }
            assert!(!live.verify(true).is_clean());
        }
    }
}
