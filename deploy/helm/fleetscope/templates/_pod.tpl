{{- define "fleetscope.image" -}}
{{- $ := index . 0 -}}
{{ index $.Values.image (index . 1) }}:{{ $.Values.image.tag | default $.Chart.AppVersion }}
{{- end }}

{{/* What every container may do: nothing beyond its own processes and the folders mounted for it. */}}
{{- define "fleetscope.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Call with the user's number. */}}
{{- define "fleetscope.user" -}}
runAsUser: {{ . }}
runAsGroup: {{ . }}
runAsNonRoot: {{ gt (int .) 0 }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* Fields of every pod's spec. Service links are off: they would put FLEETSCOPE_... variables of the cluster's making
beside those of the configuration. */}}
{{- define "fleetscope.pod" -}}
{{- $ := index . 0 -}}
serviceAccountName: {{ include "fleetscope.name" $ }}-{{ index . 1 }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Variables of every role; call with (list $ role). They come before the file, so they carry what the chart decides. */}}
{{- define "fleetscope.env" -}}
{{- $ := index . 0 -}}
- name: FLEETSCOPE_CONFIG
  value: /etc/fleetscope/fleetscope.yaml
- name: FLEETSCOPE_STATE_DIR
  value: /var/lib/fleetscope
- name: HOME
  value: /tmp
{{- with (index $.Values.log.users (index . 1)).name }}
- name: FLEETSCOPE_LOG__SASL_USER
  value: {{ . | quote }}
- name: FLEETSCOPE_LOG__SASL_PASSWORD_FILE
  value: /etc/fleetscope-log/user/password
{{- end }}
{{- if $.Values.log.tlsSecret }}
- name: FLEETSCOPE_LOG__SSL_CA_FILE
  value: /etc/fleetscope-log/tls/ca.crt
{{- if $.Values.log.clientCertificate }}
- name: FLEETSCOPE_LOG__SSL_CERT_FILE
  value: /etc/fleetscope-log/tls/tls.crt
- name: FLEETSCOPE_LOG__SSL_KEY_FILE
  value: /etc/fleetscope-log/tls/tls.key
{{- end }}
{{- end }}
{{- end }}

{{/* Call with (list $ role), as volumes. */}}
{{- define "fleetscope.mounts" -}}
{{- $ := index . 0 -}}
- {name: config, mountPath: /etc/fleetscope, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if (index $.Values.log.users (index . 1)).name }}
- {name: log-user, mountPath: /etc/fleetscope-log/user, readOnly: true}
{{- end }}
{{- if $.Values.log.tlsSecret }}
- {name: log-tls, mountPath: /etc/fleetscope-log/tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "fleetscope.volumes" -}}
{{- $ := index . 0 -}}
- name: config
  configMap:
    name: {{ include "fleetscope.name" $ }}-config
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
{{- with index $.Values.log.users (index . 1) }}
{{- if .name }}
- name: log-user
  secret:
    secretName: {{ .passwordSecret }}
    items: [{key: password, path: password}]
    defaultMode: 0440
{{- end }}
{{- end }}
{{- with $.Values.log.tlsSecret }}
- name: log-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{/* Of those who push by OTLP: agents, exporter, embedded. */}}
{{- define "fleetscope.otlpEnv" -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.pod.name=$(POD_NAME),k8s.namespace.name=$(POD_NAMESPACE),k8s.node.name=$(NODE_NAME)
{{- end }}

{{- define "fleetscope.otlpMount" -}}
- {name: otlp, mountPath: /etc/fleetscope-otlp, readOnly: true}
{{- end }}

{{- define "fleetscope.otlpVolume" -}}
- name: otlp
  secret:
    secretName: {{ .Values.otlp.secret }}
    defaultMode: 0440
{{- end }}

{{/* Label of an exporter's pods where several share the hosts; call with its number. */}}
{{- define "fleetscope.shard" -}}
fleetscope/shard: {{ . | quote }}
{{- end }}

{{/* Worker, coordinator and exporter (with its shard): the same but for name, replicas and what they read. */}}
{{- define "fleetscope.rolePod" -}}
{{- $ := index . 0 -}}{{- $role := index . 1 -}}{{- $lake := index . 2 -}}
metadata:
  labels:
    {{- include "fleetscope.selector" (list $ $role) | nindent 4 }}
    {{- if and (eq $role "exporter") (gt (int $.Values.exporter.shards) 1) }}
    {{- include "fleetscope.shard" (index . 3) | nindent 4 }}
    {{- end }}
  annotations:
    checksum/config: {{ include "fleetscope.config" $ | sha256sum }}
spec:
  {{- include "fleetscope.pod" (list $ $role) | nindent 2 }}
  terminationGracePeriodSeconds: 60
  securityContext:
    {{- include "fleetscope.user" 65532 | nindent 4 }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "fleetscope.selector" (list $ $role) | nindent 10 }}
  containers:
    - name: {{ $role }}
      image: {{ include "fleetscope.image" (list $ "pipeline") | quote }}
      imagePullPolicy: {{ $.Values.image.pullPolicy }}
      args: [{{ $role }}]
      env:
        {{- include "fleetscope.env" (list $ $role) | nindent 8 }}
        {{- if and (eq $role "exporter") (dig "otlp" "endpoint" "" $.Values.config) }}
        {{- include "fleetscope.otlpEnv" $ | nindent 8 }}
        {{- end }}
        {{- if eq $role "worker" }}
        - name: POD_INDEX
          valueFrom:
            fieldRef:
              fieldPath: metadata.labels['apps.kubernetes.io/pod-index']
        - name: FLEETSCOPE_WORKER__CHAINS
          value: "[$(POD_INDEX)]"
        {{- end }}
        {{- if and (eq $role "exporter") (gt (int $.Values.exporter.shards) 1) }}
        - name: FLEETSCOPE_EXPORTER__SHARD
          value: {{ printf "%d/%d" (index . 3) (int $.Values.exporter.shards) | quote }}
        {{- end }}
        {{- if and $lake $.Values.lake.existingClaim }}
        - name: FLEETSCOPE_LAKE__URL
          value: file:///var/lib/fleetscope/lake
        {{- end }}
      {{- if and $lake $.Values.lake.credentialsSecret }}
      envFrom:
        - secretRef: {name: {{ $.Values.lake.credentialsSecret }}}
      {{- end }}
      {{- if eq $role "exporter" }}
      {{- include "fleetscope.exporterPort" $ | nindent 6 }}
      {{- end }}
      securityContext:
        {{- include "fleetscope.confined" $ | nindent 8 }}
      resources:
        {{- toYaml (index $.Values $role).resources | nindent 8 }}
      volumeMounts:
        {{- include "fleetscope.mounts" (list $ $role) | nindent 8 }}
        {{- if and (eq $role "exporter") $.Values.otlp.secret }}
        {{- include "fleetscope.otlpMount" $ | nindent 8 }}
        {{- end }}
        - {name: state, mountPath: /var/lib/fleetscope}
        {{- if and $lake $.Values.lake.existingClaim }}
        - {name: lake, mountPath: /var/lib/fleetscope/lake}
        {{- end }}
  volumes:
    {{- include "fleetscope.volumes" (list $ $role) | nindent 4 }}
    {{- if and (eq $role "exporter") $.Values.otlp.secret }}
    {{- include "fleetscope.otlpVolume" $ | nindent 4 }}
    {{- end }}
    - name: state
      emptyDir: {}
    {{- if and $lake $.Values.lake.existingClaim }}
    - name: lake
      persistentVolumeClaim: {claimName: {{ $.Values.lake.existingClaim }}}
    {{- end }}
{{- end }}

{{/* Ready when it answers; restarted when it has not for five minutes. */}}
{{- define "fleetscope.exporterPort" -}}
ports:
  - {name: metrics, containerPort: 9464}
{{ include "fleetscope.probes" "/-/ready" }}
{{- end }}

{{/* Call with what answers; of an exporter not the page, which may be large. */}}
{{- define "fleetscope.probes" -}}
readinessProbe:
  httpGet: {path: {{ . }}, port: metrics}
  timeoutSeconds: 10
livenessProbe:
  httpGet: {path: {{ . }}, port: metrics}
  periodSeconds: 60
  timeoutSeconds: 10
  failureThreshold: 5
{{- end }}
