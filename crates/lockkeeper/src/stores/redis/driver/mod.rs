//! How commands reach the server: [`connections`] opens connections, [`routes`] finds the server of a key, [`gather`]
//! writes commands, [`call`] is what a script is sent and answers, [`script`] runs scripts, [`cluster`] follows redirections, [`replicas`] waits for replicas.

pub(in crate::stores) mod call;
mod cluster;
pub(in crate::stores) mod connections;
pub(in crate::stores) mod gather;
mod replicas;
mod routes;
pub(in crate::stores) mod script;
