//! Cases that drive a whole `Keeper` over the store: cancelled acquires, local queues, order among keepers.
