{{- define "astraflow.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag }}{{ end }}
{{- end }}

{{/* Refuses values that give objects which a cluster cannot run. Names of a StatefulSet have 52 characters at most. */}}
{{- define "astraflow.check" -}}
{{- if gt (len .Release.Name) 45 }}
{{- fail (printf "cannot use the release name %s: with more than 45 characters the names of its pods are too long; use a shorter one" .Release.Name) }}
{{- end }}
{{- if and (eq .Values.nodes.mode "fleet") (gt (len .Release.Namespace) 57) }}
{{- fail (printf "cannot use the namespace %s: with more than 57 characters the name of the nodes' namespace is too long; use a shorter one" .Release.Namespace) }}
{{- end }}
{{- if gt (int .Values.nodes.minCount) (int .Values.nodes.maxCount) }}
{{- fail (printf "cannot use nodes.minCount %d: it is above nodes.maxCount %d; lower it" (int .Values.nodes.minCount) (int .Values.nodes.maxCount)) }}
{{- end }}
{{- end }}

{{/* Word of a command. Kubernetes replaces `$(NAME)` by a variable, unless `$` is doubled. */}}
{{- define "astraflow.word" -}}
{{ . | replace "$" "$$" | quote }}
{{- end }}

{{/* Name of the objects of a trainer: `root` and `policy` in the given dictionary. A policy that is too long, or is no name
of Kubernetes, is told from others by a hash. */}}
{{- define "astraflow.trainer" -}}
{{- $name := printf "%s-trainer-%s" .root.Release.Name .policy }}
{{- if and (le (len $name) 52) (regexMatch "^[a-z0-9-]*[a-z0-9]$" $name) }}
{{- $name }}
{{- else }}
{{- printf "%s-%s" ($name | lower | replace "_" "-" | trunc 43 | trimAll "-") (sha256sum .policy | trunc 8) }}
{{- end }}
{{- end }}

{{- define "astraflow.host" -}}
{{ .Release.Name }}-run.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "astraflow.mirror" -}}
{{ .Release.Name }}-mirror.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "astraflow.nodeNamespace" -}}
{{ .Release.Namespace }}-nodes
{{- end }}

{{/* Labels of an object; `role` in the given dictionary. */}}
{{- define "astraflow.labels" -}}
app.kubernetes.io/name: astraflow
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{/* Settings of the recipe, as `--set` options of a list. */}}
{{- define "astraflow.settings" -}}
{{- range .Values.settings }}
- {{ include "astraflow.word" (printf "--set=%s" .) }}
{{- end }}
{{- end }}

{{/* Settings of a pod that meets the restricted security standard. `OnRootMismatch`: `Always` would make keys and
credentials group-readable at each start, and services refuse such files. */}}
{{- define "astraflow.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "astraflow.container" -}}
image: {{ include "astraflow.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end }}

{{/* Health checks of a service by its own command, which starts Python: hence the long timeouts. */}}
{{- define "astraflow.probes" -}}
startupProbe:
  exec: { command: [astraflow, health, {{ .role }}, "localhost:{{ .port }}"] }
  periodSeconds: 10
  timeoutSeconds: 30
  failureThreshold: 60
readinessProbe:
  exec: { command: [astraflow, health, {{ .role }}, "localhost:{{ .port }}"] }
  periodSeconds: 60
  timeoutSeconds: 30
livenessProbe:
  exec: { command: [astraflow, health, {{ .role }}, "localhost:{{ .port }}"] }
  periodSeconds: 60
  timeoutSeconds: 30
  failureThreshold: 5
{{- end }}

{{- define "astraflow.storageClass" -}}
{{- with . }}
storageClassName: {{ . | quote }}
{{- end }}
{{- end }}

{{- define "astraflow.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Token of the run and authority, for services in its pod and mirrors. */}}
{{- define "astraflow.credentials" -}}
- name: ASTRAFLOW_TOKEN
  valueFrom: { secretKeyRef: { name: {{ .Release.Name }}-run, key: token } }
- { name: ASTRAFLOW_AUTHORITY, value: /run/astraflow/authority }
- { name: ASTRAFLOW_HOME, value: /tmp }
- { name: OMP_NUM_THREADS, value: "1" }
{{- end }}

{{/* Configuration of the fleet service: one pool of pods in the nodes' namespace. */}}
{{- define "astraflow.fleet" -}}
{{- $type := dict "requests" .Values.nodes.resources.requests "limits" .Values.nodes.resources.limits "usd_per_hour" (float64 .Values.fleet.usdPerHour) }}
{{- with .Values.nodes.nodeSelector }}{{ $_ := set $type "node_selector" . }}{{ end }}
{{- with .Values.nodes.tolerations }}{{ $_ := set $type "tolerations" . }}{{ end }}
{{- $provider := dict "kind" "kubernetes" "namespace" (include "astraflow.nodeNamespace" .) "image" (include "astraflow.image" .) "user_id" 10001 "shared_memory" .Values.nodes.sharedMemory "types" (dict "node" $type) }}
{{- with .Values.imagePullSecrets }}
{{- $names := list }}{{ range . }}{{ $names = append $names .name }}{{ end }}
{{- $_ := set $provider "image_pull_secrets" $names }}
{{- end }}
{{- $pool := dict "provider" "here" "type" "node" "mode" .Values.fleet.mode "min_nodes" (int .Values.nodes.minCount) "max_nodes" (int .Values.nodes.maxCount) "drain_s" (float64 .Values.nodes.drainSeconds) }}
{{- dict "cluster" .Values.run "providers" (dict "here" $provider) "pools" (dict .Values.nodes.pool $pool) "budget" (dict "usd_per_day_max" (float64 .Values.fleet.usdPerDayMax)) | toToml }}
{{- end }}
