//! The MCP server itself: it lists the tools that a token may use, and calls them.

use std::sync::Arc;

use axum::{Router, http::request::Parts};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CancelTaskParams, CustomRequest, CustomResult,
        ErrorCode, GetPromptRequestParams, GetPromptResponse, GetPromptResult, GetTaskParams,
        GetTaskResult, Implementation, InitializeRequestParams, InitializeResult,
        InputRequiredResult, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
        ListToolsResult, PaginatedRequestParams, ProtocolVersion, ReadResourceRequestParams,
        ReadResourceResponse, ReadResourceResult, ServerCapabilities, ServerConfig,
        SubscribeRequestParams, SubscriptionFilter, UnsubscribeRequestParams, UpdateTaskParams,
    },
    service::{NotificationContext, RequestContext, SubscriptionContext},
    transport::streamable_http_server::SessionRestoreMarker,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    answer::Trouble,
    follow::{self, Asked, Call, Called, Client},
    inside::Inside,
    listing,
    news::{Level, Told},
    notices::{
        Begun, Notices,
        connection::{Session, Subscribed},
    },
    offered::{self, Offered},
    operation::Target,
    prompts, published,
    questions::Able,
    resources, tools,
    transport::{Traced, Transport},
};
use crate::{blueprint::ClientAbility, door::Entered, engine::Bearer, tasks::Tasks};

/// The description of the server for a client.
const INSTRUCTIONS: &str = "moonswarm runs blueprints: Lua programs (Luau, not PUC Lua) whose steps \
are tasks of agents, people, models and programs. Runs are durable. To run something: \
list_blueprints, start_run, get_run with wait_seconds until it has ended. To write a blueprint: \
search_docs, check_blueprint, save_blueprint. To work on tasks yourself: open_session once, then \
next_task and report_task in a loop; pass the `after` of the last next_task. Approvals of your own \
runs are answered by people: wait with get_run. Resources have the documentation and what runs \
produced; prompts begin common work.";

/// The methods of every revision that have parameters of a form. The library takes one whose
/// parameters have another form for a method that it does not know.
const METHODS: [&str; 6] =
    ["prompts/get", "resources/read", "tasks/cancel", "tasks/get", "tasks/update", "tools/call"];

/// The server. One value serves every client, or the one of a pipe.
#[derive(Clone)]
pub(super) struct Desk {
    way: Way,
    level: Level,
    notices: Notices,
}

/// The way of the tools' requests to the API.
#[derive(Clone)]
enum Way {
    /// The API of this process, with the credential of each request; the count of the changes of
    /// blueprints; what the client of a session has subscribed to.
    Inside(Router, watch::Receiver<u64>, Option<Arc<Session>>),
    /// The API of a daemon, with one credential; what the one client has subscribed to.
    Fixed(Arc<dyn Transport>, Arc<Subscribed>),
}

impl Desk {
    /// Creates a server over the API of this process. It ends its subscriptions with `over`.
    pub(super) fn inside(
        api: Router,
        moves: watch::Receiver<u64>,
        over: CancellationToken,
    ) -> Self {
        let way = Way::Inside(api, moves, None);
        Self { way, level: Level::default(), notices: Notices::new(over) }
    }

    /// Creates a server for the one client of a pipe.
    pub(super) fn fixed(
        transport: Arc<dyn Transport>,
        subscribed: Arc<Subscribed>,
        over: CancellationToken,
    ) -> Self {
        let way = Way::Fixed(transport, subscribed);
        Self { way, level: Level::default(), notices: Notices::new(over) }
    }

    /// Returns the server for one session.
    pub(super) fn of_session(&self, tasks: &Tasks) -> Self {
        let way = match &self.way {
            Way::Inside(api, moves, _) => {
                Way::Inside(api.clone(), moves.clone(), Some(Arc::new(Session::new(tasks))))
            }
            fixed @ Way::Fixed(..) => fixed.clone(),
        };
        Self { way, level: Level::default(), notices: self.notices.clone() }
    }

    /// Returns what the one client of this server has subscribed to.
    fn subscribed(&self) -> Result<&Subscribed, ErrorData> {
        match &self.way {
            Way::Fixed(_, subscribed) => Ok(subscribed),
            Way::Inside(_, _, Some(session)) => Ok(session.subscribed()),
            Way::Inside(_, _, None) => Err(no_stream()),
        }
    }

    /// Returns the way to the API with the credential of a request.
    pub(super) fn transport_for(&self, parts: &Parts) -> Arc<dyn Transport> {
        match &self.way {
            Way::Fixed(transport, _) => Arc::clone(transport),
            Way::Inside(api, moves, _) => Arc::new(Inside::new(api.clone(), moves.clone(), parts)),
        }
    }

    /// Begins a subscription: reads what its client knows before it is confirmed. The result
    /// belongs into the extensions of the request, with the filter that is accepted.
    pub(super) async fn begin(
        &self,
        parts: &Parts,
        wanted: &SubscriptionFilter,
    ) -> Result<Begun, ErrorData> {
        let transport = self.transport_for(parts);
        self.notices.begin(&*transport, client_of(parts), wanted).await
    }

    fn transport(
        &self,
        context: &RequestContext<RoleServer>,
    ) -> Result<Arc<dyn Transport>, ErrorData> {
        let way = match (&self.way, context.extensions.get::<Parts>()) {
            (Way::Fixed(transport, _), _) => Arc::clone(transport),
            (Way::Inside(..), Some(parts)) => self.transport_for(parts),
            (Way::Inside(..), None) => return Err(headless()),
        };
        Ok(Traced::of(way, context.meta.get_traceparent()))
    }

    /// Returns what the client of a request can do. A client over HTTP is asked during a call only in
    /// a session: without one nothing is kept for it between its requests.
    fn client<'a>(&self, context: &'a RequestContext<RoleServer>) -> Client<'a> {
        let able = context.client_capabilities().unwrap_or_default();
        let version = context.protocol_version();
        let has_rounds = version.is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
        let takes_tasks = able.supports_tasks();
        let able = Able::of(&able);
        let asked = match &self.way {
            _ if !able.is_any() => Asked::Never,
            _ if has_rounds => Asked::WithResult,
            Way::Fixed(..) => Asked::Directly(&context.peer),
            Way::Inside(_, _, Some(_)) => Asked::Directly(&context.peer),
            Way::Inside(_, _, None) => Asked::Never,
        };
        let told = Told {
            peer: &context.peer,
            progress: context.meta.get_progress_token(),
            logs: if has_rounds { context.meta.log_level() } else { self.level.get() },
        };
        Client { takes_tasks, asked, able, told }
    }

    /// Calls a blueprint that is a tool. A canceled call cancels its run.
    async fn call_published(
        &self,
        transport: &dyn Transport,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let all = published::all(transport).await.map_err(Trouble::into_error)?;
        let Some(found) = all.into_iter().find(|it| it.tool.name == request.name) else {
            let message = format!("unknown tool {:?}; tools/list lists the tools", request.name);
            return Err(ErrorData::invalid_params(message, None));
        };
        name(context, &found.tool.name);
        let client = self.client(context);
        client.able.check(&found.needs)?;
        let asked = Call {
            blueprint: &found.blueprint,
            input: found.input(request.arguments.unwrap_or_default()),
            state: request.request_state,
            responses: request.input_responses,
        };
        let is_resumed = asked.state.is_some();
        match follow::call(transport, asked, &client, &context.ct).await {
            Some(Ok(Called::Done(done))) => Ok(done.into_result().into()),
            Some(Ok(Called::Asks(asks))) => Ok(asks.into()),
            Some(Ok(Called::Task(task))) => Ok(CallToolResponse::Task(task)),
            // A state that the client made up is its mistake, and none of the tool.
            Some(Err(trouble)) if is_resumed => {
                Err(ErrorData::invalid_params(trouble.text(), None))
            }
            Some(Err(trouble)) => Ok(trouble.into_result().into()),
            None => Err(canceled()),
        }
    }

    /// Calls a blueprint that is a prompt or a resource, and returns its output or what it asks.
    async fn call_offered(
        &self,
        asked: Call<'_>,
        needs: &[ClientAbility],
        context: &RequestContext<RoleServer>,
    ) -> Result<Result<Value, InputRequiredResult>, ErrorData> {
        let transport = self.transport(context)?;
        let client = Client { takes_tasks: false, ..self.client(context) };
        client.able.check(needs)?;
        let is_resumed = asked.state.is_some();
        match follow::call(&*transport, asked, &client, &context.ct).await {
            Some(Ok(Called::Done(done))) => match done.value.get("output") {
                Some(output) => Ok(Ok(output.clone())),
                None => Err(ErrorData::internal_error(done.text, Some(done.value))),
            },
            Some(Ok(Called::Asks(asks))) => Ok(Err(asks)),
            Some(Ok(Called::Task(_))) => Err(ErrorData::internal_error("it is no task", None)),
            Some(Err(trouble)) if is_resumed => {
                Err(ErrorData::invalid_params(trouble.text(), None))
            }
            Some(Err(trouble)) => Err(trouble.into_error()),
            None => Err(canceled()),
        }
    }

    /// Returns the blueprints that are prompts and resources. A token that may not list blueprints
    /// has none.
    async fn offered(
        &self,
        context: &RequestContext<RoleServer>,
    ) -> Result<Vec<Offered>, ErrorData> {
        let transport = self.transport(context)?;
        listing::offered(&*transport).await.map_err(|it| listing::unlisted(&it))
    }
}

/// Names the tool or prompt of a request for the counters and spans.
fn name(context: &RequestContext<RoleServer>, name: &str) {
    if let Some(target) = context.extensions.get::<Target>() {
        target.set(name);
    }
}

fn canceled() -> ErrorData {
    ErrorData::internal_error("the call was canceled", None)
}

fn headless() -> ErrorData {
    ErrorData::internal_error("the request has no head", None)
}

/// Returns the client of a request: the hash of the id of its token, which can be written in several
/// ways.
fn client_of(parts: &Parts) -> [u8; 32] {
    let jti = match Entered::bearer_of(&parts.extensions) {
        Some(Bearer::Caller(caller)) => &*caller.jti,
        Some(Bearer::Holder(_)) | None => "",
    };
    *blake3::hash(jti.as_bytes()).as_bytes()
}

/// Returns the error of a subscription that has no way for its notices.
fn no_stream() -> ErrorData {
    let message = "a message alone has no way for notices: send `initialize` for a session, or speak \
                   the revision 2026-07-28 and send subscriptions/listen";
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, message, None)
}

/// Returns the error of a request for a task: one that does not exist is a wrong parameter.
fn of_task(trouble: Trouble) -> ErrorData {
    match &trouble {
        Trouble::Refused { status: 404, .. } => ErrorData::invalid_params(trouble.text(), None),
        _ => trouble.into_error(),
    }
}

impl ServerHandler for Desk {
    #[expect(deprecated, reason = "clients of older revisions set the level of log messages")]
    fn get_info(&self) -> ServerConfig {
        let own = Implementation::new("moonswarm", env!("CARGO_PKG_VERSION"));
        let able = ServerCapabilities::builder().enable_tools().enable_tool_list_changed();
        let able = able.enable_resources().enable_resources_subscribe();
        let able = able.enable_resources_list_changed().enable_prompts();
        let able = able.enable_prompts_list_changed().enable_tasks().enable_logging();
        ServerConfig::new(able.build())
            .with_server_info(own)
            .with_protocol_version(ProtocolVersion::LATEST)
            .with_instructions(INSTRUCTIONS)
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        let greeting = self.negotiate_initialize(&request)?;
        context.peer.set_peer_info(request);
        let is_again = context.extensions.get::<SessionRestoreMarker>().is_some();
        if let Ok(subscribed) = self.subscribed() {
            subscribed.greet(&*self.transport(&context)?, is_again).await;
        }
        Ok(greeting)
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        if let (Way::Inside(_, _, Some(session)), Some(parts)) =
            (&self.way, context.extensions.get::<Parts>())
        {
            session.start(self.transport_for(parts), context.peer);
        }
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        // The request was replaced by what is accepted, when the subscription began.
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let request = context.request_context();
        let transport = self.transport(request)?;
        let own = request.extensions.get::<Begun>();
        let head = || request.extensions.get::<Parts>()?.extensions.get::<Begun>();
        let begun = own.or_else(head).cloned();
        let begun = begun
            .ok_or_else(|| ErrorData::internal_error("the subscription did not begin", None))?;
        self.notices.serve(&transport, begun, &context).await;
        Ok(())
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let seat = || match (&self.way, context.extensions.get::<Parts>()) {
            // A pipe has one client.
            (Way::Fixed(..), _) => Ok(None),
            (Way::Inside(..), Some(parts)) => self.notices.seat(client_of(parts)).map(Some),
            (Way::Inside(..), None) => Err(headless()),
        };
        let transport = self.transport(&context)?;
        self.subscribed()?.add(&*transport, &request.uri, seat).await
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.subscribed()?.remove(&request.uri);
        Ok(())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let transport = self.transport(&context)?;
        let all = listing::tools(&*transport).await.map_err(|it| listing::unlisted(&it))?;
        Ok(ListToolsResult::with_all_items(all))
    }

    #[expect(deprecated, reason = "clients of older revisions set it")]
    async fn set_level(
        &self,
        request: rmcp::model::SetLevelRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.level.set(request.level);
        Ok(())
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let CustomRequest { method, .. } = request;
        if METHODS.contains(&method.as_str()) {
            let message = format!(
                "the params of {method} have another form: names, ids and addresses are texts, and \
                 arguments are an object, not its text"
            );
            return Err(ErrorData::invalid_params(message, None));
        }
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, method, None))
    }

    fn get_tool(&self, name: &str) -> Option<rmcp::model::Tool> {
        tools::all().iter().find(|(tool, _)| tool.name == name).map(|(_, shown)| shown.clone())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let transport = self.transport(&context)?;
        let Some(tool) = tools::own(&request.name) else {
            return self.call_published(&*transport, request, &context).await;
        };
        tokio::select! {
            result = tools::call(tool, &*transport, request.arguments.unwrap_or_default()) => {
                Ok(result.into())
            }
            () = context.ct.cancelled() => Err(canceled()),
        }
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let transport = self.transport(&context)?;
        let able = self.client(&context).able;
        follow::task(&*transport, &request.task_id, able).await.map_err(of_task)
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let transport = self.transport(&context)?;
        let updated = follow::update_task(&*transport, &request.task_id, &request.input_responses);
        updated.await.map_err(of_task)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let transport = self.transport(&context)?;
        follow::cancel_task(&*transport, &request.task_id).await.map_err(of_task)
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let transport = self.transport(&context)?;
        let all = listing::resources(&*transport).await.map_err(|it| listing::unlisted(&it))?;
        Ok(ListResourcesResult::with_all_items(all))
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let transport = self.transport(&context)?;
        let all = listing::templates(&*transport).await.map_err(|it| listing::unlisted(&it))?;
        Ok(ListResourceTemplatesResult::with_all_items(all))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let transport = self.transport(&context)?;
        let found = resources::read(&*transport, &request.uri).await;
        if let Some(contents) = found.map_err(Trouble::into_error)? {
            return Ok(ReadResourceResult::new(vec![contents]).into());
        }
        let all = self.offered(&context).await?;
        let found = all.iter().find_map(|it| Some((it, it.matches(&request.uri)?)));
        let Some((offered, input)) = found else {
            let message =
                format!("there is no resource {:?}; resources/list lists them", request.uri);
            let data = json!({ "uri": request.uri });
            return Err(ErrorData::resource_not_found(message, Some(data)));
        };
        let asked = Call {
            blueprint: &offered.blueprint,
            input: input.into(),
            state: request.request_state,
            responses: request.input_responses,
        };
        Ok(match self.call_offered(asked, &offered.needs, &context).await? {
            Ok(output) => {
                ReadResourceResult::new(vec![offered.contents(&request.uri, &output)]).into()
            }
            Err(asks) => ReadResourceResponse::InputRequired(asks),
        })
    }

    async fn list_prompts(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let transport = self.transport(&context)?;
        let all = listing::prompts(&*transport).await.map_err(|it| listing::unlisted(&it))?;
        Ok(ListPromptsResult::with_all_items(all))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let others = match prompts::is_own(&request.name) {
            true => Vec::new(),
            false => self.offered(&context).await?,
        };
        if let Some(offered) = others.iter().find(|it| it.is_prompt(&request.name)) {
            name(&context, &request.name);
            let asked = Call {
                blueprint: &offered.blueprint,
                input: offered.input(arguments).into(),
                state: request.request_state,
                responses: request.input_responses,
            };
            return Ok(match self.call_offered(asked, &offered.needs, &context).await? {
                Ok(output) => GetPromptResult::new(offered::messages(&output))
                    .with_description(offered.text())
                    .into(),
                Err(asks) => GetPromptResponse::InputRequired(asks),
            });
        }
        let filled = prompts::fill(&request.name, &arguments);
        let (text, message) = filled.map_err(|why| ErrorData::invalid_params(why, None))?;
        Ok(GetPromptResult::new(vec![message]).with_description(text).into())
    }
}
