#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A real etcd, kube-apiserver, kube-scheduler, kube-controller-manager and kubectl, built from their Go modules, and the driver with them:
#   deploy/kubernetes/test/real_cluster.sh FOLDER [VERSION]
# FOLDER keeps the programs (400 MB); what is there is not built again. Building takes half an hour of two processors, and 6 GiB of disk.
# The first three suffice; a program that is not there yet is left out of the test where it can be.
# Needs: Go, its module proxy, and a build of Terrace (TERRACE_BUILD_DIR; default: build/dev).
set -eu
[ $# -ge 1 ] || { sed -n '3,8s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$1/bin" "$1/kubernetes" "$1/etcd"
folder=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
minor=${2:-37.2}
etcd=${ETCD:-v3.6.5}
export CGO_ENABLED=0 GOFLAGS=-buildvcs=false GOTOOLCHAIN=local

# k8s.io/kubernetes is made of modules that lie in its own tree and, at the same version, in the proxy.
if [ ! -f "$folder/kubernetes/go.sum" ]; then
  cd "$folder/kubernetes"
  sources=$(cd / && go mod download -json "k8s.io/kubernetes@v1.$minor" | sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p')
  {
    printf 'module kubernetes.test\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v1.%s\n\nreplace (\n' "$minor"
    sed -n "s|^\t\(k8s.io/[a-z-]*\) => ./staging/.*|\t\1 => \1 v0.$minor|p" "$sources/go.mod"
    printf ')\n'
  } > go.mod
  printf 'package tools\n\nimport (\n' > tools.go
  for program in kube-apiserver kube-scheduler kube-controller-manager kubectl kubelet; do
    printf '\t_ "k8s.io/kubernetes/cmd/%s"\n' "$program" >> tools.go
  done
  printf ')\n' >> tools.go
  sed -i '1i //go:build tools\n' tools.go
  go mod tidy -e
fi
said="-X k8s.io/component-base/version.gitVersion=v1.$minor -X k8s.io/component-base/version.gitMajor=1"
said="$said -X k8s.io/component-base/version.gitMinor=${minor%%.*}"
cd "$folder/kubernetes"
for program in ${PROGRAMS:-kube-apiserver kube-scheduler kubectl kube-controller-manager}; do
  [ -x "$folder/bin/$program" ] || go build -p "${JOBS:-2}" -ldflags "-s -w $said" -o "$folder/bin/$program" "k8s.io/kubernetes/cmd/$program"
done
if [ ! -x "$folder/bin/etcd" ]; then
  cd "$folder/etcd"
  printf 'module etcd.test\n\ngo 1.24.0\n\nrequire go.etcd.io/etcd/server/v3 %s\n' "$etcd" > go.mod
  printf '//go:build tools\n\npackage tools\n\nimport _ "go.etcd.io/etcd/server/v3"\n' > tools.go
  go mod tidy -e
  go build -p "${JOBS:-2}" -o "$folder/bin/etcd" go.etcd.io/etcd/server/v3
fi
cd "$here"
TERRACE_KUBERNETES_BIN="$folder/bin" go test -count=1 -v -timeout 60m -run TestRealCluster .
