{{- define "fleetscope.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" (.Release.Name | trunc 29 | trimSuffix "-") .Chart.Name }}{{ end }}
{{- end }}

{{/* Call with (list $ component). */}}
{{- define "fleetscope.selector" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: {{ $.Chart.Name }}
app.kubernetes.io/instance: {{ $.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "fleetscope.labels" -}}
{{- $ := index . 0 -}}
{{ include "fleetscope.selector" . }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $.Chart.Name $.Chart.Version }}
{{- end }}

{{- define "fleetscope.metadata" -}}
name: {{ include "fleetscope.name" (index . 0) }}-{{ index . 1 }}
namespace: {{ (index . 0).Release.Namespace }}
labels:
  {{- include "fleetscope.labels" . | nindent 2 }}
{{- end }}
