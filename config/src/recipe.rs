//! Named sets of settings: one point each on the curve between tokens per second per device and per user.

/// A named set of settings.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// Its name.
    pub name: &'static str,
    /// When to use it.
    pub purpose: &'static str,
    /// Flags without their dashes and their values; `true` and `false` for switches.
    pub settings: &'static [(&'static str, &'static str)],
    /// Most API servers to start; as many as half the cores allow. 0 leaves the setting alone.
    pub api_servers: u16,
}

/// All recipes.
pub const RECIPES: &[Recipe] = &[
    Recipe {
        name: "max-throughput",
        purpose: "most tokens per second per device; the single user waits longer",
        settings: &[
            ("max-num-seqs", "1024"),
            ("max-num-batched-tokens", "16384"),
            ("stream-interval", "20"),
            ("async-scheduling", "true"),
            ("cuda-graph-capture-size", "1024"),
        ],
        api_servers: 8,
    },
    Recipe {
        name: "balanced",
        purpose: "many users, each with a fluent stream",
        settings: &[
            ("max-num-seqs", "256"),
            ("max-num-batched-tokens", "8192"),
            ("stream-interval", "4"),
            ("async-scheduling", "true"),
            ("cuda-graph-capture-size", "256"),
        ],
        api_servers: 4,
    },
    Recipe {
        name: "min-latency",
        purpose: "most tokens per second per user; few users at once",
        settings: &[
            ("max-num-seqs", "16"),
            ("max-num-batched-tokens", "2048"),
            ("stream-interval", "1"),
            ("async-scheduling", "true"),
            ("cuda-graph-capture-size", "16"),
        ],
        api_servers: 0,
    },
    Recipe {
        name: "gpt-oss",
        purpose: "the settings published for gpt-oss on large GPUs: capture size 2048, stream interval 20, API servers up to 20",
        settings: &[
            ("max-num-seqs", "1024"),
            ("max-num-batched-tokens", "8192"),
            ("stream-interval", "20"),
            ("async-scheduling", "true"),
            ("cuda-graph-capture-size", "2048"),
        ],
        api_servers: 20,
    },
];

impl Recipe {
    /// The recipe of this name.
    pub fn find(name: &str) -> Option<&'static Recipe> {
        RECIPES.iter().find(|recipe| recipe.name == name)
    }

    /// Its settings on a machine with `cores` processors.
    pub fn settings_for(&self, cores: usize) -> Vec<(String, String)> {
        let mut settings: Vec<_> =
            self.settings.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        if self.api_servers > 0 {
            let count = (cores / 2).clamp(1, usize::from(self.api_servers));
            settings.push(("api-server-count".into(), count.to_string()));
        }
        settings
    }
}
