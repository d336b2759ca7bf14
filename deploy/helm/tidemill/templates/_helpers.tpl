{{- define "tidemill.fullname" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}
{{- end }}

{{- define "tidemill.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tidemill.labels" -}}
{{ include "tidemill.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "tidemill.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{- define "tidemill.authSecret" -}}
{{ default (printf "%s-auth" (include "tidemill.fullname" .)) .Values.auth.existingSecret }}
{{- end }}

{{- define "tidemill.databaseSecret" -}}
{{ default (printf "%s-database" (include "tidemill.fullname" .)) .Values.database.existingSecret }}
{{- end }}

{{/* "true" where servers share a PostgreSQL. */}}
{{- define "tidemill.hasDatabase" -}}
{{- if or .Values.database.existingSecret .Values.database.url .Values.database.postgres.enabled }}true{{ end }}
{{- end }}

{{/* As many engines as there may ever be: the gateway knows them all by name and skips those that do not answer. */}}
{{- define "tidemill.mostReplicas" -}}
{{- if or .Values.autoscaling.hpa.enabled .Values.autoscaling.keda.enabled }}{{ .Values.autoscaling.maxReplicas }}
{{- else }}{{ .Values.replicas }}{{ end }}
{{- end }}

{{/* Whether more than one server may run without a database that they share. */}}
{{- define "tidemill.alone" -}}
{{- if and (eq (int (include "tidemill.mostReplicas" .)) 1) .Values.persistence.enabled }}true{{ end }}
{{- end }}

{{- define "tidemill.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "tidemill.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* What every server has: keys, and the secret that hashes them. */}}
{{- define "tidemill.environment" -}}
- name: TIDEMILL_API_KEY
  valueFrom: {secretKeyRef: {name: {{ include "tidemill.authSecret" . }}, key: api-key}}
- name: TIDEMILL_SECRET
  valueFrom: {secretKeyRef: {name: {{ include "tidemill.authSecret" . }}, key: secret}}
{{- end }}

{{/* The database: the one that servers share, or a file beside the models of one that is alone, or none. */}}
{{- define "tidemill.database" -}}
{{- if include "tidemill.hasDatabase" .context }}
- name: TIDEMILL_DATABASE
  valueFrom: {secretKeyRef: {name: {{ include "tidemill.databaseSecret" .context }}, key: url}}
{{- else if not .alone }}
- {name: TIDEMILL_DATABASE, value: none}
{{- end }}
{{- end }}

{{/* Probes as Tidemill means them: alive is the API process, ready is that an engine answers. */}}
{{- define "tidemill.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 5
  timeoutSeconds: 4
  failureThreshold: {{ max 1 (div .seconds 5) }}
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 5
  timeoutSeconds: 4
  failureThreshold: 1
livenessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
lifecycle:
  preStop:  # until the endpoints are told; then SIGTERM drains
    exec: {command: [/usr/bin/python3, -c, "import time; time.sleep(5)"]}
{{- end }}

{{/* "true" where the secret has a key file. */}}
{{- define "tidemill.hasKeyFile" -}}
{{- if or (not .Values.auth.existingSecret) .Values.auth.keyFile }}true{{ end }}
{{- end }}

{{- define "tidemill.keyVolume" -}}
- name: keys
  secret:
    secretName: {{ include "tidemill.authSecret" . }}
    items: [{key: keys.toml, path: keys.toml}]
    defaultMode: 0440
{{- end }}
