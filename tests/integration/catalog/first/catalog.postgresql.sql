CREATE TABLE alert_causes (
    key VARCHAR(200) NOT NULL,
    since TIMESTAMP WITH TIME ZONE NOT NULL,
    alerted_on TIMESTAMP WITH TIME ZONE,
    count BIGINT NOT NULL,
    note TEXT NOT NULL,
    CONSTRAINT pk_alert_causes PRIMARY KEY (key)
);
CREATE TABLE alerts (
    id BIGSERIAL NOT NULL,
    receiver VARCHAR(200) NOT NULL,
    payload JSON NOT NULL,
    created_on TIMESTAMP WITH TIME ZONE NOT NULL,
    attempts INTEGER NOT NULL,
    error TEXT,
    CONSTRAINT pk_alerts PRIMARY KEY (id)
);
CREATE INDEX ix_alerts_receiver ON alerts (receiver, attempts, id);
CREATE TABLE audit (
    id BIGSERIAL NOT NULL,
    action VARCHAR(40) NOT NULL,
    object TEXT NOT NULL,
    who VARCHAR(200) NOT NULL,
    began_on TIMESTAMP WITH TIME ZONE NOT NULL,
    ended_on TIMESTAMP WITH TIME ZONE,
    result TEXT,
    CONSTRAINT pk_audit PRIMARY KEY (id)
);
CREATE INDEX ix_audit_began ON audit (began_on);
CREATE TABLE conditions (
    about VARCHAR(20) NOT NULL,
    subject VARCHAR(500) NOT NULL,
    since TIMESTAMP WITH TIME ZONE NOT NULL,
    cause TEXT NOT NULL,
    CONSTRAINT pk_conditions PRIMARY KEY (about, subject)
);
CREATE TABLE connections (
    id VARCHAR(36) NOT NULL,
    schema_name VARCHAR(200) NOT NULL,
    name VARCHAR(200) NOT NULL,
    type VARCHAR(20) NOT NULL,
    region TEXT,
    endpoint TEXT,
    role_arn TEXT,
    credentials TEXT NOT NULL,
    comment TEXT,
    external_id TEXT NOT NULL,
    created_on TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_connections PRIMARY KEY (id),
    CONSTRAINT uq_connections_schema_name UNIQUE (schema_name, name)
);
CREATE TABLE functions (
    id VARCHAR(36) NOT NULL,
    schema_name VARCHAR(200) NOT NULL,
    name VARCHAR(200) NOT NULL,
    function TEXT NOT NULL,
    returns TEXT NOT NULL,
    of_items BOOLEAN NOT NULL,
    comment TEXT,
    search_path TEXT,
    pickled BYTEA,
    created_on TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_functions PRIMARY KEY (id),
    CONSTRAINT uq_functions_schema_name UNIQUE (schema_name, name)
);
CREATE TABLE identity (
    id VARCHAR(36) NOT NULL,
    CONSTRAINT pk_identity PRIMARY KEY (id)
);
CREATE TABLE leases (
    name VARCHAR(200) NOT NULL,
    owner TEXT NOT NULL,
    purpose TEXT NOT NULL,
    expires FLOAT NOT NULL,
    CONSTRAINT pk_leases PRIMARY KEY (name)
);
CREATE TABLE links (
    name VARCHAR(500) NOT NULL,
    location TEXT NOT NULL,
    CONSTRAINT pk_links PRIMARY KEY (name)
);
CREATE TABLE outputs (
    id BIGSERIAL NOT NULL,
    table_name VARCHAR(401) NOT NULL,
    volume_id VARCHAR(36) NOT NULL,
    path VARCHAR COLLATE "C" NOT NULL,
    path_digest VARCHAR(64) NOT NULL,
    source VARCHAR COLLATE "C" NOT NULL,
    source_digest VARCHAR(64) NOT NULL,
    attempt VARCHAR(36) NOT NULL,
    state VARCHAR(20) NOT NULL,
    replaced_by VARCHAR(36),
    staged TEXT,
    size BIGINT NOT NULL,
    etag TEXT NOT NULL,
    CONSTRAINT pk_outputs PRIMARY KEY (id)
);
CREATE INDEX ix_outputs_attempt ON outputs (attempt);
CREATE INDEX ix_outputs_replaced_by ON outputs (replaced_by);
CREATE INDEX ix_outputs_table_source ON outputs (table_name, source_digest);
CREATE INDEX ix_outputs_table_state ON outputs (table_name, state);
CREATE INDEX ix_outputs_volume_path ON outputs (volume_id, path_digest);
CREATE TABLE registrations (
    metastore VARCHAR(200) NOT NULL,
    name VARCHAR(500) NOT NULL,
    location TEXT NOT NULL,
    CONSTRAINT pk_registrations PRIMARY KEY (metastore, name)
);
CREATE TABLE sources (
    id VARCHAR(36) NOT NULL,
    schema_name VARCHAR(200) NOT NULL,
    name VARCHAR(200) NOT NULL,
    kind VARCHAR(20) NOT NULL,
    primary_key TEXT,
    retention_policy BIGINT,
    immutable BOOLEAN NOT NULL,
    options JSON NOT NULL,
    comment TEXT,
    created_on TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_sources PRIMARY KEY (id),
    CONSTRAINT uq_sources_schema_name UNIQUE (schema_name, name)
);
CREATE TABLE streams (
    id VARCHAR(36) NOT NULL,
    schema_name VARCHAR(200) NOT NULL,
    name VARCHAR(200) NOT NULL,
    source_kind VARCHAR(20) NOT NULL,
    source_id VARCHAR(401) NOT NULL,
    source_schema VARCHAR(200) NOT NULL,
    source_name VARCHAR(200) NOT NULL,
    table_id VARCHAR(36),
    mode VARCHAR(20) NOT NULL,
    identity JSON NOT NULL,
    comment TEXT,
    "offset" BIGINT,
    initial BOOLEAN NOT NULL,
    began_after BIGINT,
    sequence BIGINT NOT NULL,
    created_on TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_streams PRIMARY KEY (id),
    CONSTRAINT uq_streams_schema_name UNIQUE (schema_name, name)
);
CREATE INDEX ix_streams_source_id ON streams (source_id);
CREATE TABLE tails (
    name VARCHAR(500) NOT NULL,
    location TEXT NOT NULL,
    CONSTRAINT pk_tails PRIMARY KEY (name)
);
CREATE TABLE jobs (
    id VARCHAR(36) NOT NULL,
    schema_name VARCHAR(200) NOT NULL,
    name VARCHAR(200) NOT NULL,
    stream_id VARCHAR(36) NOT NULL,
    other_stream_ids JSON NOT NULL,
    cls VARCHAR(20) NOT NULL,
    statement TEXT,
    query TEXT,
    function TEXT,
    search_path TEXT,
    pickled BYTEA,
    fingerprint VARCHAR(64),
    "where" TEXT,
    write VARCHAR(20),
    on_move VARCHAR(20),
    retries BIGINT,
    pause_after BIGINT,
    timeout FLOAT,
    isolate BOOLEAN,
    concurrency BIGINT,
    rate TEXT,
    parallel BIGINT,
    cpus BIGINT,
    memory BIGINT,
    gpus BIGINT,
    expect JSON,
    expect_warn JSON,
    verify_every FLOAT,
    max_files BIGINT,
    max_bytes BIGINT,
    alert JSON,
    comment TEXT,
    on_change BOOLEAN NOT NULL,
    every FLOAT,
    cron TEXT,
    priority BIGINT NOT NULL,
    group_by TEXT,
    group_complete TEXT,
    group_quiet FLOAT,
    returns TEXT,
    arguments JSON,
    environment TEXT,
    outputs_to TEXT,
    outputs_prefix TEXT,
    declared BOOLEAN,
    into_schema VARCHAR(200) NOT NULL,
    into_name VARCHAR(200) NOT NULL,
    state VARCHAR(20) NOT NULL,
    state_reason TEXT,
    owns_stream BOOLEAN NOT NULL,
    clean BOOLEAN,
    may_have_strays BOOLEAN,
    failed_batches INTEGER,
    verified_version BIGINT,
    verified_on TIMESTAMP WITH TIME ZONE,
    created_on TIMESTAMP WITH TIME ZONE NOT NULL,
    last_started TIMESTAMP WITH TIME ZONE,
    last_ended TIMESTAMP WITH TIME ZONE,
    last_outcome TEXT,
    CONSTRAINT pk_jobs PRIMARY KEY (id),
    CONSTRAINT uq_jobs_schema_name UNIQUE (schema_name, name),
    CONSTRAINT uq_jobs_stream_id UNIQUE (stream_id),
    CONSTRAINT fk_jobs_stream_id FOREIGN KEY(stream_id) REFERENCES streams (id)
);
CREATE TABLE volumes (
    id VARCHAR(36) NOT NULL,
    schema_name VARCHAR(200) NOT NULL,
    name VARCHAR(200) NOT NULL,
    location TEXT NOT NULL,
    connection_id VARCHAR(36),
    queue_type VARCHAR(20) NOT NULL,
    queue_name TEXT,
    queue_properties JSON,
    virtual_cluster TEXT NOT NULL,
    recursive BOOLEAN NOT NULL,
    patterns JSON NOT NULL,
    ignores JSON NOT NULL,
    max_removals TEXT,
    inventory TEXT,
    expect_every FLOAT,
    comment TEXT,
    created_on TIMESTAMP WITH TIME ZONE NOT NULL,
    table_id VARCHAR(36),
    refresh_count BIGINT NOT NULL,
    reconciled_on TIMESTAMP WITH TIME ZONE,
    held_removals BIGINT DEFAULT '0' NOT NULL,
    accept_removals BOOLEAN DEFAULT false NOT NULL,
    CONSTRAINT pk_volumes PRIMARY KEY (id),
    CONSTRAINT uq_volumes_schema_name UNIQUE (schema_name, name),
    CONSTRAINT fk_volumes_connection_id FOREIGN KEY(connection_id) REFERENCES connections (id)
);
CREATE TABLE failures (
    id BIGSERIAL NOT NULL,
    job_id VARCHAR(36) NOT NULL,
    path VARCHAR COLLATE "C" NOT NULL,
    path_digest VARCHAR(64) DEFAULT '' NOT NULL,
    file_version TEXT NOT NULL,
    commit_version BIGINT NOT NULL,
    state VARCHAR(20) NOT NULL,
    kind VARCHAR(20) NOT NULL,
    message TEXT NOT NULL,
    traceback TEXT,
    attempts INTEGER NOT NULL,
    next_try TIMESTAMP WITH TIME ZONE,
    batch_id VARCHAR(36) NOT NULL,
    attempt VARCHAR(36) NOT NULL,
    failed_on TIMESTAMP WITH TIME ZONE NOT NULL,
    waiting_since TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_failures PRIMARY KEY (id),
    CONSTRAINT fk_failures_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE INDEX ix_failures_attempt ON failures (attempt);
CREATE INDEX ix_failures_due ON failures (job_id, state, next_try);
CREATE INDEX ix_failures_job_digest ON failures (job_id, path_digest);
CREATE TABLE job_counts (
    job_id VARCHAR(36) NOT NULL,
    name VARCHAR(100) NOT NULL,
    number FLOAT NOT NULL,
    CONSTRAINT pk_job_counts PRIMARY KEY (job_id, name),
    CONSTRAINT fk_job_counts_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE TABLE job_totals (
    job_id VARCHAR(36) NOT NULL,
    batches BIGINT NOT NULL,
    succeeded BIGINT NOT NULL,
    failed BIGINT NOT NULL,
    rows BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    CONSTRAINT pk_job_totals PRIMARY KEY (job_id),
    CONSTRAINT fk_job_totals_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE TABLE key_checks (
    volume_id VARCHAR(36) NOT NULL,
    path_digest VARCHAR(64) NOT NULL,
    path VARCHAR COLLATE "C" NOT NULL,
    asked_on TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_key_checks PRIMARY KEY (volume_id, path_digest),
    CONSTRAINT fk_key_checks_volume_id FOREIGN KEY(volume_id) REFERENCES volumes (id)
);
CREATE TABLE plans (
    id VARCHAR(36) NOT NULL,
    kind VARCHAR(20) NOT NULL,
    state VARCHAR(20) NOT NULL,
    job_id VARCHAR(36),
    stream_id VARCHAR(36) NOT NULL,
    table_id VARCHAR(36) NOT NULL,
    from_version BIGINT,
    to_version BIGINT NOT NULL,
    initial BOOLEAN NOT NULL,
    location TEXT NOT NULL,
    "where" TEXT,
    files BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    created_on TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_plans PRIMARY KEY (id),
    CONSTRAINT fk_plans_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE INDEX ix_plans_job_id ON plans (job_id);
CREATE INDEX ix_plans_state_created ON plans (state, created_on);
CREATE INDEX ix_plans_state_stream ON plans (state, stream_id);
CREATE INDEX ix_plans_stream_id ON plans (stream_id);
CREATE TABLE reconciles (
    volume_id VARCHAR(36) NOT NULL,
    began_on TIMESTAMP WITH TIME ZONE NOT NULL,
    seconds FLOAT NOT NULL,
    cause TEXT NOT NULL,
    listed BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    missing BIGINT NOT NULL,
    changed BIGINT NOT NULL,
    phantom BIGINT NOT NULL,
    late BIGINT NOT NULL,
    findings BIGINT NOT NULL,
    CONSTRAINT pk_reconciles PRIMARY KEY (volume_id, began_on),
    CONSTRAINT fk_reconciles_volume_id FOREIGN KEY(volume_id) REFERENCES volumes (id)
);
CREATE TABLE refreshes (
    volume_id VARCHAR(36) NOT NULL,
    number BIGINT NOT NULL,
    cause TEXT NOT NULL,
    inserted BIGINT NOT NULL,
    updated BIGINT NOT NULL,
    deleted BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    committed_on TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_refreshes PRIMARY KEY (volume_id, number),
    CONSTRAINT fk_refreshes_volume_id FOREIGN KEY(volume_id) REFERENCES volumes (id)
);
CREATE TABLE rejected_messages (
    id BIGSERIAL NOT NULL,
    volume_id VARCHAR(36) NOT NULL,
    digest VARCHAR(64) DEFAULT '' NOT NULL,
    subject TEXT NOT NULL,
    reason TEXT NOT NULL,
    count BIGINT NOT NULL,
    first_seen TIMESTAMP WITH TIME ZONE NOT NULL,
    last_seen TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_rejected_messages PRIMARY KEY (id),
    CONSTRAINT fk_rejected_messages_volume_id FOREIGN KEY(volume_id) REFERENCES volumes (id)
);
CREATE UNIQUE INDEX ix_rejected_volume_digest ON rejected_messages (volume_id, digest);
CREATE INDEX ix_rejected_volume_seen ON rejected_messages (volume_id, last_seen);
CREATE TABLE volume_totals (
    volume_id VARCHAR(36) NOT NULL,
    files BIGINT NOT NULL,
    changed BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    CONSTRAINT pk_volume_totals PRIMARY KEY (volume_id),
    CONSTRAINT fk_volume_totals_volume_id FOREIGN KEY(volume_id) REFERENCES volumes (id)
);
CREATE TABLE batches (
    id VARCHAR(36) NOT NULL,
    plan_id VARCHAR(36) NOT NULL,
    job_id VARCHAR(36),
    stream_id VARCHAR(36) NOT NULL,
    number INTEGER NOT NULL,
    state VARCHAR(20) NOT NULL,
    after_path VARCHAR COLLATE "C",
    until_path VARCHAR COLLATE "C",
    files BIGINT NOT NULL,
    replaced BIGINT NOT NULL,
    removals BIGINT NOT NULL,
    moves BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    sequence BIGINT,
    attempts INTEGER NOT NULL,
    succeeded BIGINT NOT NULL,
    failed BIGINT NOT NULL,
    rows BIGINT NOT NULL,
    created_on TIMESTAMP WITH TIME ZONE NOT NULL,
    committed_on TIMESTAMP WITH TIME ZONE,
    seconds FLOAT,
    counted JSON,
    files_per_call BIGINT,
    CONSTRAINT pk_batches PRIMARY KEY (id),
    CONSTRAINT uq_batches_plan_id UNIQUE (plan_id, number),
    CONSTRAINT fk_batches_plan_id FOREIGN KEY(plan_id) REFERENCES plans (id),
    CONSTRAINT fk_batches_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE INDEX ix_batches_job_committed ON batches (job_id, committed_on);
CREATE INDEX ix_batches_job_created ON batches (job_id, created_on, number, id);
CREATE INDEX ix_batches_job_state ON batches (job_id, state);
CREATE INDEX ix_batches_plan_state ON batches (plan_id, state, number);
CREATE INDEX ix_batches_stream ON batches (stream_id);
CREATE TABLE intents (
    stream_id VARCHAR(36) NOT NULL,
    sequence BIGINT NOT NULL,
    batch_id VARCHAR(36) NOT NULL,
    attempt VARCHAR(36) NOT NULL,
    marker_stream_id VARCHAR(36) NOT NULL,
    marker_sequence BIGINT NOT NULL,
    owner TEXT NOT NULL,
    targets JSON NOT NULL,
    state VARCHAR(20) NOT NULL,
    started_on TIMESTAMP WITH TIME ZONE NOT NULL,
    ended_on TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_intents PRIMARY KEY (stream_id, sequence),
    CONSTRAINT fk_intents_batch_id FOREIGN KEY(batch_id) REFERENCES batches (id)
);
CREATE INDEX ix_intents_attempt ON intents (attempt);
CREATE INDEX ix_intents_batch_id ON intents (batch_id);
CREATE INDEX ix_intents_stream_state ON intents (stream_id, state);
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY);
INSERT INTO alembic_version VALUES ('0100');
INSERT INTO identity VALUES ('b2161c43-9d30-4e7f-8b14-1f0f6d6f5fe0');
