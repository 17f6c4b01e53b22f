{{/* What the schema cannot say: values that only fail together. */}}
{{- define "fleetscope.checks" -}}
{{- $config := .Values.config }}
{{- $url := dig "log" "url" "" $config }}
{{- $lake := dig "lake" "url" "" $config }}
{{- $protocol := dig "log" "security_protocol" "PLAINTEXT" $config }}
{{- if eq .Values.mode "server" }}
  {{- if not $url }}{{ fail "mode server: config.log.url must name the Kafka log" }}{{ end }}
  {{- if and .Values.log.tlsSecret (not (hasSuffix "SSL" $protocol)) }}{{ fail (printf "log.tlsSecret is of no use: config.log.security_protocol is %s" $protocol) }}{{ end }}
  {{- if and .Values.log.clientCertificate (not .Values.log.tlsSecret) }}{{ fail "log.clientCertificate: log.tlsSecret holds none" }}{{ end }}
  {{- if not (hasPrefix "kafka://" $url) }}{{ fail "mode server: config.log.url must begin with kafka://, pods share no folder" }}{{ end }}
  {{- if .Values.networkPolicy.enabled }}
    {{- $open := list }}{{ range .Values.networkPolicy.logPorts }}{{ $open = append $open (toString (int64 .)) }}{{ end }}
    {{- range regexFindAll ":[0-9]+" (regexReplaceAll "^kafka://([^/?]*).*$" $url "${1}") -1 }}
      {{- if not (has (trimPrefix ":" .) $open) }}{{ fail (printf "networkPolicy.logPorts lacks port %s of config.log.url: no pod would reach the log" (trimPrefix ":" .)) }}{{ end }}
    {{- end }}
  {{- end }}
  {{- if and $lake .Values.lake.existingClaim }}{{ fail "config.lake.url and lake.existingClaim name a lake each: give one" }}{{ end }}
  {{- if not (or $lake .Values.lake.existingClaim) }}{{ fail "mode server: config.lake.url (a bucket) or lake.existingClaim (a shared volume) must name the lake" }}{{ end }}
  {{- if and $lake (hasPrefix "file:" $lake) }}{{ fail "mode server: config.lake.url is a folder of one machine; use a bucket or lake.existingClaim" }}{{ end }}
{{- else }}
  {{- if or $url $lake .Values.lake.existingClaim .Values.log.tlsSecret (ne $protocol "PLAINTEXT") }}{{ fail "mode embedded keeps log and lake in agent.stateFolder; config.log.url and what secures it, config.lake.url and lake.existingClaim belong to mode server" }}{{ end }}
  {{- if and .Values.agent.enabled (eq .Values.agent.storage "pod") }}{{ fail "mode embedded: agent and pipeline share a folder of the node; agent.storage must be hostPath" }}{{ end }}
{{- end }}
{{- range $role, $user := .Values.log.users }}
  {{- if and (hasPrefix "SASL_" $protocol) (not (and $user.name $user.passwordSecret)) }}{{ fail (printf "config.log.security_protocol is %s: log.users.%s needs name and passwordSecret" $protocol $role) }}{{ end }}
  {{- if and (not (hasPrefix "SASL_" $protocol)) (or $user.name $user.passwordSecret) }}{{ fail (printf "log.users.%s would not log in: config.log.security_protocol is %s" $role $protocol) }}{{ end }}
{{- end }}
{{- if and .Values.agent.probes.enabled (not .Values.agent.probes.keySecret) }}{{ fail "agent.probes.enabled: probes are authenticated, agent.probes.keySecret must name the Secret with their key" }}{{ end }}
{{- $receiver := dig "otlp" "endpoint" "" $config }}
{{- if and $receiver .Values.networkPolicy.enabled }}
  {{- $open := list }}{{ range .Values.networkPolicy.otlpPorts }}{{ $open = append $open (toString (int64 .)) }}{{ end }}
  {{- $port := regexReplaceAll "^https?://[^/]*?(:([0-9]+))?(/.*)?$" $receiver "${2}" | default (ternary "443" "80" (hasPrefix "https:" $receiver)) }}
  {{- if not (has $port $open) }}{{ fail (printf "networkPolicy.otlpPorts lacks port %s of config.otlp.endpoint: no pod would reach the receiver" $port) }}{{ end }}
{{- end }}
{{- if and (gt (int .Values.exporter.shards) 1) (ne .Values.mode "server") }}{{ fail "mode embedded has one exporter; exporter.shards is of mode server" }}{{ end }}
{{- if and (eq .Values.agent.storage "pod") (or .Values.agent.hostPID .Values.agent.prepareFolders) }}{{ fail "agent.hostPID and agent.prepareFolders are of agent.storage hostPath" }}{{ end }}
{{- end }}
