BEGIN TRANSACTION;
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY);
INSERT INTO "alembic_version" VALUES('0100');
CREATE TABLE alert_causes (
	"key" VARCHAR(200) NOT NULL, 
	since DATETIME NOT NULL, 
	alerted_on DATETIME, 
	count BIGINT NOT NULL, 
	note TEXT NOT NULL, 
	CONSTRAINT pk_alert_causes PRIMARY KEY ("key")
);
CREATE TABLE alerts (
	id INTEGER NOT NULL, 
	receiver VARCHAR(200) NOT NULL, 
	payload JSON NOT NULL, 
	created_on DATETIME NOT NULL, 
	attempts INTEGER NOT NULL, 
	error TEXT, 
	CONSTRAINT pk_alerts PRIMARY KEY (id)
);
CREATE TABLE audit (
	id INTEGER NOT NULL, 
	action VARCHAR(40) NOT NULL, 
	object TEXT NOT NULL, 
	who VARCHAR(200) NOT NULL, 
	began_on DATETIME NOT NULL, 
	ended_on DATETIME, 
	result TEXT, 
	CONSTRAINT pk_audit PRIMARY KEY (id)
);
CREATE TABLE batches (
	id VARCHAR(36) NOT NULL, 
	plan_id VARCHAR(36) NOT NULL, 
	job_id VARCHAR(36), 
	stream_id VARCHAR(36) NOT NULL, 
	number INTEGER NOT NULL, 
	state VARCHAR(20) NOT NULL, 
	after_path TEXT, 
	until_path TEXT, 
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
	created_on DATETIME NOT NULL, 
	committed_on DATETIME, 
	seconds FLOAT, 
	counted JSON, 
	files_per_call BIGINT, 
	CONSTRAINT pk_batches PRIMARY KEY (id), 
	CONSTRAINT uq_batches_plan_id UNIQUE (plan_id, number), 
	CONSTRAINT fk_batches_plan_id FOREIGN KEY(plan_id) REFERENCES plans (id), 
	CONSTRAINT fk_batches_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
);
INSERT INTO "batches" VALUES('68af2b65f7474220','df2e8507051c4d23afb8debf49ebe3d7','a7b60772-9884-4da9-9781-3ed740dec557','6070e647-59ba-4030-be88-6aa97accfab5',1,'committed',NULL,'empty.txt',3,0,0,0,8,1,1,2,1,2,'2026-11-27 09:20:44.960182','2026-11-27 09:20:52.468537',2.99740595900220796465e+00,NULL,1);
CREATE TABLE conditions (
	about VARCHAR(20) NOT NULL, 
	subject VARCHAR(500) NOT NULL, 
	since DATETIME NOT NULL, 
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
	created_on DATETIME NOT NULL, 
	CONSTRAINT pk_connections PRIMARY KEY (id), 
	CONSTRAINT uq_connections_schema_name UNIQUE (schema_name, name)
);
CREATE TABLE failures (
	id INTEGER NOT NULL, 
	job_id VARCHAR(36) NOT NULL, 
	path TEXT NOT NULL, 
	path_digest VARCHAR(64) DEFAULT '' NOT NULL, 
	file_version TEXT NOT NULL, 
	commit_version BIGINT NOT NULL, 
	state VARCHAR(20) NOT NULL, 
	kind VARCHAR(20) NOT NULL, 
	message TEXT NOT NULL, 
	traceback TEXT, 
	attempts INTEGER NOT NULL, 
	next_try DATETIME, 
	batch_id VARCHAR(36) NOT NULL, 
	attempt VARCHAR(36) NOT NULL, 
	failed_on DATETIME NOT NULL, 
	waiting_since DATETIME, 
	CONSTRAINT pk_failures PRIMARY KEY (id), 
	CONSTRAINT fk_failures_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
);
INSERT INTO "failures" VALUES(1,'a7b60772-9884-4da9-9781-3ed740dec557','empty.txt','78907f14915cf120820225aca1b971d11ebb26132387502a7d187e32cf01c641','ba79f-18ebdc6dba72b650-0',1,'quarantined','raised','ValueError: The file is empty.','Traceback (most recent call last):
  File "/srv/first/count.py", line 4, in count
    raise ValueError("The file is empty.")
ValueError: The file is empty.
',1,NULL,'68af2b65f7474220','264a2a8be72a4ce58dc15474b7641abd','2026-11-27 09:20:52.423049',NULL);
CREATE TABLE functions (
	id VARCHAR(36) NOT NULL, 
	schema_name VARCHAR(200) NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	function TEXT NOT NULL, 
	returns TEXT NOT NULL, 
	of_items BOOLEAN NOT NULL, 
	comment TEXT, 
	search_path TEXT, 
	pickled BLOB, 
	created_on DATETIME NOT NULL, 
	CONSTRAINT pk_functions PRIMARY KEY (id), 
	CONSTRAINT uq_functions_schema_name UNIQUE (schema_name, name)
);
CREATE TABLE identity (
	id VARCHAR(36) NOT NULL, 
	CONSTRAINT pk_identity PRIMARY KEY (id)
);
INSERT INTO "identity" VALUES('d112030a-cf1d-40fc-bd1b-ae3ae722ed22');
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
	started_on DATETIME NOT NULL, 
	ended_on DATETIME, 
	CONSTRAINT pk_intents PRIMARY KEY (stream_id, sequence), 
	CONSTRAINT fk_intents_batch_id FOREIGN KEY(batch_id) REFERENCES batches (id)
);
INSERT INTO "intents" VALUES('6070e647-59ba-4030-be88-6aa97accfab5',1,'68af2b65f7474220','264a2a8be72a4ce58dc15474b7641abd','6070e647-59ba-4030-be88-6aa97accfab5',1,'vm/29363/1795771243.06/3ff55b80','[{"location": "/srv/first/home/warehouse/tables/public/sizes", "table_id": "8dbcacf2-05c8-41ba-85d7-cfc5cad8e058", "version": 0}]','committed','2026-11-27 09:20:45.089151','2026-11-27 09:20:52.464917');
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
INSERT INTO "job_totals" VALUES('a7b60772-9884-4da9-9781-3ed740dec557',1,2,1,2,8);
CREATE TABLE jobs (
	id VARCHAR(36) NOT NULL, 
	schema_name VARCHAR(200) NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	stream_id VARCHAR(36) NOT NULL, 
	other_stream_ids JSON NOT NULL, 
	cls VARCHAR(20) NOT NULL, 
	statement TEXT, 
	"query" TEXT, 
	function TEXT, 
	search_path TEXT, 
	pickled BLOB, 
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
	verified_on DATETIME, 
	created_on DATETIME NOT NULL, 
	last_started DATETIME, 
	last_ended DATETIME, 
	last_outcome TEXT, 
	CONSTRAINT pk_jobs PRIMARY KEY (id), 
	CONSTRAINT uq_jobs_schema_name UNIQUE (schema_name, name), 
	CONSTRAINT uq_jobs_stream_id UNIQUE (stream_id), 
	CONSTRAINT fk_jobs_stream_id FOREIGN KEY(stream_id) REFERENCES streams (id)
);
INSERT INTO "jobs" VALUES('a7b60772-9884-4da9-9781-3ed740dec557','public','sizes','6070e647-59ba-4030-be88-6aa97accfab5','[]','FileJob',NULL,NULL,'/srv/first/count.py:count','/srv/first',NULL,'8f951e413627b5b5f3d236fe61b2852b9923372776332cb092384f2bfd7ddda6',NULL,'upsert','rerun',0,3,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,'[]','[]',NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,0,NULL,NULL,NULL,'n BIGINT','{}',NULL,NULL,NULL,0,'public','sizes','active',NULL,1,1,0,0,NULL,NULL,'2026-11-27 09:20:43.537614','2026-11-27 09:20:44.898897','2026-11-27 09:20:52.490400','2 files done, 1 failed, 0 removed');
CREATE TABLE key_checks (
	volume_id VARCHAR(36) NOT NULL, 
	path_digest VARCHAR(64) NOT NULL, 
	path TEXT NOT NULL, 
	asked_on DATETIME NOT NULL, 
	CONSTRAINT pk_key_checks PRIMARY KEY (volume_id, path_digest), 
	CONSTRAINT fk_key_checks_volume_id FOREIGN KEY(volume_id) REFERENCES volumes (id)
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
	id INTEGER NOT NULL, 
	table_name VARCHAR(401) NOT NULL, 
	volume_id VARCHAR(36) NOT NULL, 
	path TEXT NOT NULL, 
	path_digest VARCHAR(64) NOT NULL, 
	source TEXT NOT NULL, 
	source_digest VARCHAR(64) NOT NULL, 
	attempt VARCHAR(36) NOT NULL, 
	state VARCHAR(20) NOT NULL, 
	replaced_by VARCHAR(36), 
	staged TEXT, 
	size BIGINT NOT NULL, 
	etag TEXT NOT NULL, 
	CONSTRAINT pk_outputs PRIMARY KEY (id)
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
	created_on DATETIME NOT NULL, 
	CONSTRAINT pk_plans PRIMARY KEY (id), 
	CONSTRAINT fk_plans_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
);
INSERT INTO "plans" VALUES('df2e8507051c4d23afb8debf49ebe3d7','stream','done','a7b60772-9884-4da9-9781-3ed740dec557','6070e647-59ba-4030-be88-6aa97accfab5','5955c2b5-49c3-4c68-a9ef-377e2542f7a3',NULL,1,0,'/srv/first/home/warehouse/_plans/df2e8507051c4d23afb8debf49ebe3d7',NULL,3,8,'2026-11-27 09:20:44.960166');
CREATE TABLE reconciles (
	volume_id VARCHAR(36) NOT NULL, 
	began_on DATETIME NOT NULL, 
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
INSERT INTO "reconciles" VALUES('9d938e02-4f1e-4594-904c-5a4dd5843348','2026-11-27 09:20:44.406111',3.40280055999755859375e-01,'bootstrap',3,8,0,0,0,0,0);
CREATE TABLE refreshes (
	volume_id VARCHAR(36) NOT NULL, 
	number BIGINT NOT NULL, 
	cause TEXT NOT NULL, 
	inserted BIGINT NOT NULL, 
	updated BIGINT NOT NULL, 
	deleted BIGINT NOT NULL, 
	bytes BIGINT NOT NULL, 
	committed_on DATETIME NOT NULL, 
	CONSTRAINT pk_refreshes PRIMARY KEY (volume_id, number), 
	CONSTRAINT fk_refreshes_volume_id FOREIGN KEY(volume_id) REFERENCES volumes (id)
);
INSERT INTO "refreshes" VALUES('9d938e02-4f1e-4594-904c-5a4dd5843348',1,'bootstrap',3,0,0,8,'2026-11-27 09:20:44.698048');
CREATE TABLE registrations (
	metastore VARCHAR(200) NOT NULL, 
	name VARCHAR(500) NOT NULL, 
	location TEXT NOT NULL, 
	CONSTRAINT pk_registrations PRIMARY KEY (metastore, name)
);
CREATE TABLE rejected_messages (
	id INTEGER NOT NULL, 
	volume_id VARCHAR(36) NOT NULL, 
	digest VARCHAR(64) DEFAULT '' NOT NULL, 
	subject TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	count BIGINT NOT NULL, 
	first_seen DATETIME NOT NULL, 
	last_seen DATETIME NOT NULL, 
	CONSTRAINT pk_rejected_messages PRIMARY KEY (id), 
	CONSTRAINT fk_rejected_messages_volume_id FOREIGN KEY(volume_id) REFERENCES volumes (id)
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
	created_on DATETIME NOT NULL, 
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
	created_on DATETIME NOT NULL, 
	CONSTRAINT pk_streams PRIMARY KEY (id), 
	CONSTRAINT uq_streams_schema_name UNIQUE (schema_name, name)
);
INSERT INTO "streams" VALUES('6070e647-59ba-4030-be88-6aa97accfab5','public','sizes_stream','volume','9d938e02-4f1e-4594-904c-5a4dd5843348','public','photos','5955c2b5-49c3-4c68-a9ef-377e2542f7a3','standard','[]',NULL,1,0,NULL,1,'2026-11-27 09:20:43.535163');
CREATE TABLE tails (
	name VARCHAR(500) NOT NULL, 
	location TEXT NOT NULL, 
	CONSTRAINT pk_tails PRIMARY KEY (name)
);
CREATE TABLE volume_totals (
	volume_id VARCHAR(36) NOT NULL, 
	files BIGINT NOT NULL, 
	changed BIGINT NOT NULL, 
	bytes BIGINT NOT NULL, 
	CONSTRAINT pk_volume_totals PRIMARY KEY (volume_id), 
	CONSTRAINT fk_volume_totals_volume_id FOREIGN KEY(volume_id) REFERENCES volumes (id)
);
INSERT INTO "volume_totals" VALUES('9d938e02-4f1e-4594-904c-5a4dd5843348',3,3,8);
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
	created_on DATETIME NOT NULL, 
	table_id VARCHAR(36), 
	refresh_count BIGINT NOT NULL, 
	reconciled_on DATETIME, 
	held_removals BIGINT DEFAULT '0' NOT NULL, 
	accept_removals BOOLEAN DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_volumes PRIMARY KEY (id), 
	CONSTRAINT uq_volumes_schema_name UNIQUE (schema_name, name), 
	CONSTRAINT fk_volumes_connection_id FOREIGN KEY(connection_id) REFERENCES connections (id)
);
INSERT INTO "volumes" VALUES('9d938e02-4f1e-4594-904c-5a4dd5843348','public','photos','file:///srv/first/files',NULL,'local',NULL,NULL,'DEFAULT',1,'[]','[".*", "*~", "*.tmp", "*.part", "*.crdownload"]',NULL,NULL,NULL,NULL,'2026-11-27 09:20:42.481368','5955c2b5-49c3-4c68-a9ef-377e2542f7a3',1,'2026-11-27 09:20:44.746408',0,0);
CREATE INDEX ix_streams_source_id ON streams (source_id);
CREATE INDEX ix_outputs_table_state ON outputs (table_name, state);
CREATE INDEX ix_outputs_volume_path ON outputs (volume_id, path_digest);
CREATE INDEX ix_outputs_attempt ON outputs (attempt);
CREATE INDEX ix_outputs_replaced_by ON outputs (replaced_by);
CREATE INDEX ix_outputs_table_source ON outputs (table_name, source_digest);
CREATE INDEX ix_audit_began ON audit (began_on);
CREATE INDEX ix_alerts_receiver ON alerts (receiver, attempts, id);
CREATE INDEX ix_plans_job_id ON plans (job_id);
CREATE INDEX ix_plans_state_created ON plans (state, created_on);
CREATE INDEX ix_plans_state_stream ON plans (state, stream_id);
CREATE INDEX ix_plans_stream_id ON plans (stream_id);
CREATE INDEX ix_failures_job_digest ON failures (job_id, path_digest);
CREATE INDEX ix_failures_due ON failures (job_id, state, next_try);
CREATE INDEX ix_failures_attempt ON failures (attempt);
CREATE UNIQUE INDEX ix_rejected_volume_digest ON rejected_messages (volume_id, digest);
CREATE INDEX ix_rejected_volume_seen ON rejected_messages (volume_id, last_seen);
CREATE INDEX ix_batches_job_created ON batches (job_id, created_on, number, id);
CREATE INDEX ix_batches_job_state ON batches (job_id, state);
CREATE INDEX ix_batches_plan_state ON batches (plan_id, state, number);
CREATE INDEX ix_batches_stream ON batches (stream_id);
CREATE INDEX ix_batches_job_committed ON batches (job_id, committed_on);
CREATE INDEX ix_intents_stream_state ON intents (stream_id, state);
CREATE INDEX ix_intents_attempt ON intents (attempt);
CREATE INDEX ix_intents_batch_id ON intents (batch_id);
COMMIT;
