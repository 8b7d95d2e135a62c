//! Which process is which.

use std::fmt;
use std::str::FromStr;

use gossamer_config::ServeConfig;
use serde::{Deserialize, Serialize};

/// What a child process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ChildRole {
    /// Speaks HTTP; the number of the API server.
    ApiServer(u16),
    /// Plans steps.
    Scheduler,
    /// Runs them; the rank.
    Worker(u32),
}

impl fmt::Display for ChildRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ApiServer(index) => write!(f, "api-server-{index}"),
            Self::Scheduler => f.write_str("scheduler"),
            Self::Worker(rank) => write!(f, "worker-{rank}"),
        }
    }
}

/// A name that is no role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected api-server-N, scheduler or worker-N, got `{0}`")]
pub struct NoSuchRole(pub String);

impl FromStr for ChildRole {
    type Err = NoSuchRole;

    fn from_str(name: &str) -> Result<Self, NoSuchRole> {
        let unknown = || NoSuchRole(name.to_owned());
        if name == "scheduler" {
            return Ok(Self::Scheduler);
        }
        if let Some(index) = name.strip_prefix("api-server-") {
            return index.parse().map(Self::ApiServer).map_err(|_| unknown());
        }
        if let Some(rank) = name.strip_prefix("worker-") {
            return rank.parse().map(Self::Worker).map_err(|_| unknown());
        }
        Err(unknown())
    }
}

/// How many children of each kind there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// API servers.
    pub api_servers: u16,
    /// Workers.
    pub workers: u32,
}

impl Topology {
    /// What a configuration asks for.
    pub fn of(config: &ServeConfig) -> Self {
        Self { api_servers: config.api_server_count, workers: config.parallel.world_size() }
    }

    /// All children, the slowest to start first.
    pub fn roles(self) -> Vec<ChildRole> {
        let workers = (0..self.workers).map(ChildRole::Worker);
        let api_servers = (0..self.api_servers).map(ChildRole::ApiServer);
        workers.chain([ChildRole::Scheduler]).chain(api_servers).collect()
    }

    /// The place of a child in per-child tables.
    pub fn place(self, role: ChildRole) -> Option<usize> {
        match role {
            ChildRole::Scheduler => Some(0),
            ChildRole::ApiServer(index) => (index < self.api_servers).then_some(1 + usize::from(index)),
            ChildRole::Worker(rank) => {
                (rank < self.workers).then_some(1 + usize::from(self.api_servers) + rank as usize)
            }
        }
    }

    /// Number of places.
    pub fn places(self) -> usize {
        1 + usize::from(self.api_servers) + self.workers as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_has_its_own_place_and_its_name_parses_back() {
        let topology = Topology { api_servers: 3, workers: 2 };
        let mut places: Vec<usize> = topology
            .roles()
            .into_iter()
            .map(|role| {
                assert_eq!(role.to_string().parse(), Ok(role));
                topology.place(role).unwrap()
            })
            .collect();
        places.sort_unstable();
        assert_eq!(places, (0..topology.places()).collect::<Vec<_>>());
        assert_eq!(topology.place(ChildRole::ApiServer(3)), None);
        assert_eq!(topology.place(ChildRole::Worker(2)), None);
        for name in ["", "worker-", "worker-x", "api-server-70000", "clerk"] {
            assert_eq!(name.parse::<ChildRole>(), Err(NoSuchRole(name.to_owned())));
        }
    }
}
