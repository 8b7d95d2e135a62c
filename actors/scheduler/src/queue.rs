//! Waiting sequences, fair among tenants.
//!
//! Start-time fair queueing: every tenant has a virtual time, the tokens that it was given. Within a priority the tenant
//! with the least is served next; within a tenant, priority and arrival decide. A tenant that comes back from idleness
//! starts at the virtual time of the tenant served last, so that it can neither hoard a claim nor be punished for the
//! time that the device had nothing else to do.

use crate::sequence::SeqId;
use std::collections::{BTreeSet, HashMap};

/// A sequence's place in any order: lower runs earlier, and is pre-empted later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub priority: i32,
    pub arrival: u64,
    pub id: SeqId,
}

/// Index of a tenant.
pub(crate) type TenantId = u32;

struct Tenant {
    name: u64,
    virtual_time: u64,
    /// Sequences of the tenant that are not finished.
    sequences: u32,
    waiting: BTreeSet<Place>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct FairQueue {
    tenants: Vec<Option<Tenant>>,
    vacant: Vec<TenantId>,
    by_name: HashMap<u64, TenantId>,
    virtual_time: u64,
    sequences: usize,
    waiting: usize,
}

impl FairQueue {
    /// Sequences that wait.
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// A sequence of this tenant exists from now on.
    pub fn enter(&mut self, name: u64) -> TenantId {
        self.sequences += 1;
        let id = *self.by_name.entry(name).or_insert_with(|| {
            self.vacant.pop().unwrap_or_else(|| {
                self.tenants.push(None);
                self.tenants.len() as TenantId - 1
            })
        });
        let tenant = self.tenants[id as usize].get_or_insert_with(|| Tenant {
            name,
            virtual_time: 0,
            sequences: 0,
            waiting: BTreeSet::new(),
        });
        if tenant.sequences == 0 {
            tenant.virtual_time = tenant.virtual_time.max(self.virtual_time);
        }
        tenant.sequences += 1;
        id
    }

    /// A sequence of this tenant is finished; it does not wait any more.
    pub fn leave(&mut self, id: TenantId) {
        self.sequences -= 1;
        self.tenant_mut(id).sequences -= 1;
        // A tenant without sequences is worth remembering only while it is ahead of the others.
        if self.sequences == 0 {
            self.tenants.clear();
            self.vacant.clear();
            self.by_name.clear();
            self.virtual_time = 0;
        } else if self.tenants.len() >= 64 && self.tenants.len() > 2 * self.sequences {
            for index in 0..self.tenants.len() {
                self.forget_if_useless(index as TenantId);
            }
        } else {
            self.forget_if_useless(id);
        }
    }

    fn forget_if_useless(&mut self, id: TenantId) {
        let slot = &mut self.tenants[id as usize];
        if let Some(tenant) = slot
            && tenant.sequences == 0
            && tenant.virtual_time <= self.virtual_time
        {
            self.by_name.remove(&tenant.name);
            *slot = None;
            self.vacant.push(id);
        }
    }

    fn tenant_mut(&mut self, id: TenantId) -> &mut Tenant {
        self.tenants[id as usize].as_mut().expect("a tenant lives as long as its sequences")
    }

    fn tenant(&self, id: TenantId) -> &Tenant {
        self.tenants[id as usize].as_ref().expect("a tenant lives as long as its sequences")
    }

    pub fn push(&mut self, tenant: TenantId, place: Place) {
        let new = self.tenant_mut(tenant).waiting.insert(place);
        debug_assert!(new, "{place:?} waits already");
        self.waiting += 1;
    }

    pub fn remove(&mut self, tenant: TenantId, place: Place) {
        let there = self.tenant_mut(tenant).waiting.remove(&place);
        debug_assert!(there, "{place:?} does not wait");
        self.waiting -= 1;
    }

    /// The sequence of this tenant that is next.
    pub fn head(&self, tenant: TenantId) -> Option<Place> {
        self.tenant(tenant).waiting.first().copied()
    }

    /// Tenants that have somebody waiting, and who is next.
    pub fn heads(&self) -> impl Iterator<Item = (TenantId, Place, u64)> + '_ {
        self.tenants.iter().enumerate().filter_map(|(id, tenant)| {
            let tenant = tenant.as_ref()?;
            Some((id as TenantId, *tenant.waiting.first()?, tenant.virtual_time))
        })
    }

    pub fn virtual_time(&self, tenant: TenantId) -> u64 {
        self.tenant(tenant).virtual_time
    }

    /// This tenant, at this virtual time, is served now.
    pub fn serve(&mut self, virtual_time: u64) {
        self.virtual_time = self.virtual_time.max(virtual_time);
    }

    /// The tenant was given tokens.
    pub fn charge(&mut self, tenant: TenantId, tokens: u32) {
        self.tenant_mut(tenant).virtual_time += u64::from(tokens);
    }

    /// All who wait, in no order of meaning.
    pub fn iter(&self) -> impl Iterator<Item = Place> + '_ {
        self.tenants.iter().flatten().flat_map(|tenant| tenant.waiting.iter().copied())
    }

    pub fn tenants(&self) -> usize {
        self.by_name.len()
    }
}
