{{- define "volstream.image" -}}
{{ .Values.image | default (printf "volstream:%s" .Chart.AppVersion) }}
{{- end }}

{{/* Its Services, of which `...-spark-connect` is the longest, have names of at most 63 characters without dots. */}}
{{- define "volstream.spark" -}}
{{- if or (gt (len .Release.Name) 49) (contains "." .Release.Name) }}
{{- fail (printf "release %s: use a name of at most 49 characters, without dots, because Services are named after it" .Release.Name) }}
{{- end }}
{{- .Release.Name }}-spark
{{- end }}

{{/* Takes the root and the component's name. */}}
{{- define "volstream.selector" -}}
app.kubernetes.io/name: volstream
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* A virtual cluster's name as part of names. */}}
{{- define "volstream.short" -}}
{{ . | lower | replace "_" "-" }}
{{- end }}

{{- define "volstream.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "volstream.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end }}

{{/* Whether the warehouse is a folder. */}}
{{- define "volstream.folder" -}}
{{- if hasPrefix "/" .Values.warehouse.location }}yes{{ end }}
{{- end }}

{{/* What daemons, server and executors see under the same names. */}}
{{- define "volstream.sharedMounts" -}}
{{- if include "volstream.folder" . }}
- {name: warehouse, mountPath: {{ .Values.warehouse.location | quote }}}
{{- end }}
{{- with .Values.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "volstream.sharedVolumes" -}}
{{- if include "volstream.folder" . }}
- name: warehouse
  persistentVolumeClaim: {claimName: {{ .Values.warehouse.existingClaim | default (printf "%s-warehouse" .Release.Name) }}}
{{- end }}
{{- with .Values.volumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* volstream.toml of a daemon. Takes the root, and the virtual cluster's name and values. */}}
{{- define "volstream.settings" -}}
{{- $settings := merge (deepCopy (.cluster.settings | default dict)) (.root.Values.settings | default dict) }}
{{- if .root.Values.console.tlsSecret }}
{{- $tls := "/etc/volstream/tls/tls" }}
{{- $settings = merge $settings (dict "console_address" "0.0.0.0" "console_certificate" (print $tls ".crt") "console_key" (print $tls ".key")) }}
{{- end }}
{{- if .cluster.sparkRemote }}
{{- $_ := set $settings "spark_remote" .cluster.sparkRemote }}
{{- else if .cluster.spark }}
{{- if not .root.Values.spark.enabled }}
{{- fail (printf "virtualClusters.%s: spark.enabled is false; name a server as its sparkRemote" .name) }}
{{- end }}
{{- /* In clear and without a token, because a NetworkPolicy lets nobody else near it. */}}
{{- $_ := set $settings "spark_remote" (printf "sc://%s-connect:15002" (include "volstream.spark" .root)) }}
{{- end }}
{{- toToml $settings }}
{{- end }}

{{/* Settings of Hadoop's connector for a warehouse in S3, which volstream finds for an engine of its own by itself. */}}
{{- define "volstream.connector" -}}
{{- $options := .Values.settings.warehouse_options | default dict }}
fs.s3.impl: org.apache.hadoop.fs.s3a.S3AFileSystem
fs.s3a.aws.credentials.provider: software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider
{{- with $options.AWS_REGION }}
fs.s3a.endpoint.region: {{ . | quote }}
{{- end }}
{{- with $options.AWS_ENDPOINT_URL }}
fs.s3a.endpoint: {{ . | quote }}
{{- if hasPrefix "http:" . }}
fs.s3a.connection.ssl.enabled: "false"
{{- end }}
{{- if ne (lower ($options.AWS_VIRTUAL_HOSTED_STYLE_REQUEST | default "")) "true" }}
fs.s3a.path.style.access: "true"
{{- end }}
{{- end }}
{{- end }}
