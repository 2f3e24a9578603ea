//! Paths of the contract.

/// `GET` on a node: its [`crate::NodeReport`].
pub const MODELS: &str = "/models";
/// `POST` on a node: [`crate::LoadRequest`] in, [`crate::Ensured`] out. It answers at once, before the load is done;
/// asking again for the same model joins the load that runs.
pub const LOAD: &str = "/models/load";
/// `POST` on a node: [`crate::UnloadRequest`] in, [`crate::Unloading`] out, or 404.
pub const UNLOAD: &str = "/models/unload";
/// `GET` on a node, with the model's name, slashes included, in place of `{*id}`: [`crate::Endpoint`], or 404 for a
/// model that is not ready. The name ends in `/endpoint`: routers that match a rest of the path see
/// `NAME/endpoint`. See [`endpoint`].
pub const ENDPOINT: &str = "/models/{*id}";
/// `GET` on a node: [`crate::Discovery`].
pub const DISCOVERY: &str = "/discovery";
/// `POST` on a gateway: [`crate::NodeReport`] in, [`crate::Heartbeat`] out. The join token goes into the header
/// `Authorization: Bearer TOKEN`; a wrong one is answered 401.
pub const HEARTBEAT: &str = "/fleet/heartbeat";

/// What follows a model's name in the path of its endpoint.
const ENDPOINT_END: &str = "/endpoint";

/// The path that asks where a model's inference goes.
pub fn endpoint(model: &str) -> String {
    format!("{MODELS}/{model}{ENDPOINT_END}")
}

/// The model's name out of what [`ENDPOINT`] matched; `None` if the path is another one.
pub fn endpoint_model(rest: &str) -> Option<&str> {
    rest.strip_suffix(ENDPOINT_END).filter(|model| !model.is_empty())
}
