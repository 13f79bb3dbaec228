{{- define "labels" -}}
{app.kubernetes.io/part-of: trnwatch, app.kubernetes.io/name: {{ . }}}
{{- end }}

{{/* What each pod has: its user, and the files of a secret. */}}
{{- define "pod" -}}
automountServiceAccountToken: false
{{- with .pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  {runAsNonRoot: true, runAsUser: {{ .user }}, runAsGroup: {{ .group }}, fsGroup: {{ .group }}, seccompProfile: {type: RuntimeDefault}}
volumes:
  - name: secrets
    secret:
      secretName: {{ .secret }}
      defaultMode: 0440
      items:
        {{- range .files }}
        - {key: {{ . }}, path: {{ . }}}
        {{- end }}
  - {name: tmp, emptyDir: {medium: Memory, sizeLimit: 64Mi}}
{{- end }}

{{- define "container" -}}
securityContext:
  {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
volumeMounts:
  - {name: secrets, mountPath: /run/secrets/trnwatch, readOnly: true}
  - {name: tmp, mountPath: /tmp}
{{- end }}

{{/* A pod of one of trnwatch's programs. */}}
{{- define "program" -}}
{{- $pod := dict "user" 10001 "group" 10001 "secret" .Values.secret "pullSecrets" .Values.pullSecrets }}
{{- include "pod" (set $pod "files" (list "database_url" "redis_url" "secret_key")) }}
{{- end }}

{{/* A store: its service and its set. */}}
{{- define "store" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
spec:
  clusterIP: None
  selector: {{ include "labels" .name }}
  ports:
    - name: {{ .name }}
      port: {{ .port }}
      targetPort: {{ .name }}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ .name }}
  labels: {{ include "labels" .name }}
spec:
  serviceName: {{ .name }}
  replicas: {{ .replicas }}
  selector: {matchLabels: {{ include "labels" .name }}}
  template:
    metadata:
      labels: {{ include "labels" .name }}
    spec:
      {{- include "pod" . | nindent 6 }}
        {{- .volumes | nindent 8 }}
      containers:
        - name: {{ .name }}
          image: {{ .given.image }}
          ports:
            - name: {{ .name }}
              containerPort: {{ .port }}
          resources: {{ toJson .given.resources }}
          {{- include "container" . | nindent 10 }}
            {{- .mounts | nindent 12 }}
          {{- .program | nindent 10 }}
  volumeClaimTemplates:
    - metadata:
        name: data
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .given.storageClass }}
        storageClassName: {{ . }}
        {{- end }}
        resources: {requests: {storage: {{ .given.storage }}}}
{{- end }}
