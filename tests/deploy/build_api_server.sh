#!/usr/bin/env bash
# A real kube-apiserver and etcd from Go modules into the folder named: no image, no download but the module proxy's.
#   tests/deploy/build_api_server.sh .components/kubernetes
# k8s.io/kubernetes replaces its own parts by folders of its repository, which a module that requires it does not inherit: each
# is replaced here by the published module of the same name.
set -euo pipefail
KUBERNETES=v1.34.4
PARTS=v0.34.4
ETCD=v3.6.16
into=$(mkdir -p "$1" && cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CGO_ENABLED=0 GOFLAGS=-mod=mod

if [ ! -x "$into/etcd" ]; then
  mkdir "$work/etcd" && cd "$work/etcd"
  go mod init etcd 2>/dev/null
  cat >main.go <<'GO'
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
GO
  go get "go.etcd.io/etcd/server/v3@$ETCD"
  go build -trimpath -ldflags='-s -w' -o "$into/etcd" .
fi

if [ ! -x "$into/kube-apiserver" ]; then
  mkdir "$work/apiserver" && cd "$work/apiserver"
  go mod init apiserver 2>/dev/null
  cat >main.go <<'GO'
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }
GO
  whole=$(go mod download -json "k8s.io/kubernetes@$KUBERNETES" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
  for part in $(sed -nE 's#^[[:space:]]*(k8s\.io/[a-z-]+) => \./staging/.*#\1#p' "$whole"); do
    go mod edit -replace "$part=$part@$PARTS"
  done
  go get "k8s.io/kubernetes@$KUBERNETES"
  # The version it tells, and checks charts' kubeVersion against.
  go build -trimpath -ldflags="-s -w -X k8s.io/component-base/version.gitVersion=$KUBERNETES -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34" \
    -o "$into/kube-apiserver" .
fi
