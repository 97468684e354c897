{{/* The pod of an executor, which Spark completes: name, image, arguments, environment, memory, cores, scratch. */}}
{{- define "volstream.executor" -}}
apiVersion: v1
kind: Pod
metadata:
  labels:
    {{- include "volstream.selector" (dict "root" . "component" "spark-executor") | nindent 4 }}
spec:
  serviceAccountName: {{ .Release.Name }}
  automountServiceAccountToken: false
  imagePullSecrets: {{ toJson .Values.imagePullSecrets }}
  # Variables of Services would look like settings of volstream or Spark.
  enableServiceLinks: false
  securityContext:
    {{- include "volstream.podSecurity" . | nindent 4 }}
  containers:
    - name: executor
      command: ["tini", "--", "python", "/opt/volstream/executor.py"]
      {{- with .Values.spark.secret }}
      envFrom:
        - secretRef: {name: {{ . }}}
      {{- end }}
      # What sessions bring, such as volstream's code, goes into the current folder; blocks into the volume whose name begins so.
      workingDir: /var/lib/volstream
      volumeMounts:
        - {name: spark-local-dir-1, mountPath: /var/lib/volstream}
        {{- include "volstream.sharedMounts" . | trim | nindent 8 }}
      securityContext:
        {{- include "volstream.containerSecurity" . | nindent 8 }}
  volumes:
    - name: spark-local-dir-1
      emptyDir: {sizeLimit: {{ .Values.spark.executor.scratch }}}
    {{- include "volstream.sharedVolumes" . | trim | nindent 4 }}
{{- end }}
