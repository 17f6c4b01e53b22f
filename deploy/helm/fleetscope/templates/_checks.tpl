{{/* What the schema cannot say: values that only fail together. */}}
{{- define "fleetscope.checks" -}}
{{- $config := .Values.config }}
{{- $url := dig "log" "url" "" $config }}
{{- $lake := dig "lake" "url" "" $config }}
{{- if eq .Values.mode "server" }}
  {{- $secrets := .Values.log.urlSecret }}
  {{- range $role, $secret := $secrets }}
    {{- if and (not $url) (not $secret) }}{{ fail (printf "mode server: config.log.url or log.urlSecret.%s must name the Kafka log" $role) }}{{ end }}
  {{- end }}
  {{- if and $url (not (hasPrefix "kafka://" $url)) }}{{ fail "mode server: config.log.url must begin with kafka://, pods share no folder" }}{{ end }}
  {{- if and $url .Values.networkPolicy.enabled }}
    {{- $open := list }}{{ range .Values.networkPolicy.logPorts }}{{ $open = append $open (toString (int64 .)) }}{{ end }}
    {{- range regexFindAll ":[0-9]+" (regexReplaceAll "^kafka://([^/?]*).*$" $url "${1}") -1 }}
      {{- if not (has (trimPrefix ":" .) $open) }}{{ fail (printf "networkPolicy.logPorts lacks port %s of config.log.url: no pod would reach the log" (trimPrefix ":" .)) }}{{ end }}
    {{- end }}
  {{- end }}
  {{- if and $lake .Values.lake.existingClaim }}{{ fail "config.lake.url and lake.existingClaim name a lake each: give one" }}{{ end }}
  {{- if not (or $lake .Values.lake.existingClaim) }}{{ fail "mode server: config.lake.url (a bucket) or lake.existingClaim (a shared volume) must name the lake" }}{{ end }}
  {{- if and $lake (hasPrefix "file:" $lake) }}{{ fail "mode server: config.lake.url is a folder of one machine; use a bucket or lake.existingClaim" }}{{ end }}
{{- else }}
  {{- if or $url $lake .Values.lake.existingClaim (join "" (values .Values.log.urlSecret)) }}{{ fail "mode embedded keeps log and lake in agent.stateFolder; config.log.url, log.urlSecret, config.lake.url and lake.existingClaim belong to mode server" }}{{ end }}
  {{- if and .Values.agent.enabled (eq .Values.agent.storage "pod") }}{{ fail "mode embedded: agent and pipeline share a folder of the node; agent.storage must be hostPath" }}{{ end }}
{{- end }}
{{- if and (eq .Values.agent.storage "pod") (or .Values.agent.hostPID .Values.agent.prepareFolders) }}{{ fail "agent.hostPID and agent.prepareFolders are of agent.storage hostPath" }}{{ end }}
{{- end }}
