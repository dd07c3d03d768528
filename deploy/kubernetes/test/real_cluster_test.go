// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// cluster is a real etcd, API server and scheduler, without nodes. real_cluster.sh builds them.
type cluster struct {
	t      *testing.T
	bed    *bed
	bin    string
	server string
	// Whether a controller deallocates claims; else the test does it.
	controllers bool
	admin       kubernetes.Interface
}

const adminToken = "token-of-the-test"

func freePort(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}

func (c *cluster) run(name string, arguments ...string) {
	process := c.bed.start(name, filepath.Join(c.bin, name), arguments...)
	c.t.Cleanup(func() { c.bed.stop(process, syscall.SIGTERM) })
}

func (c *cluster) kubeconfig(name, token string) string {
	path := c.bed.in(name)
	config := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":%q,"insecure-skip-tls-verify":true}}],`+
		`"users":[{"name":"u","user":{"token":%q}}],"contexts":[{"name":"x","context":{"cluster":"c","user":"u"}}],"current-context":"x"}`, c.server, token)
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

func (c *cluster) client(kubeconfig string) kubernetes.Interface {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		c.t.Fatal(err)
	}
	return kubernetes.NewForConfigOrDie(config)
}

func startCluster(t *testing.T, b *bed) *cluster {
	bin := os.Getenv("TERRACE_KUBERNETES_BIN")
	c := &cluster{t: t, bed: b, bin: bin}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	signer := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	os.WriteFile(b.in("signer.pem"), signer, 0o600)
	os.WriteFile(b.in("tokens.csv"), []byte(adminToken+",admin,admin,system:masters\n"), 0o600)
	etcd, peers, port := freePort(t), freePort(t), freePort(t)
	c.server = "https://127.0.0.1:" + port
	c.run("etcd", "--data-dir", b.in("etcd"), "--listen-client-urls", "http://127.0.0.1:"+etcd, "--advertise-client-urls", "http://127.0.0.1:"+etcd,
		"--listen-peer-urls", "http://127.0.0.1:"+peers, "--initial-advertise-peer-urls", "http://127.0.0.1:"+peers,
		"--initial-cluster", "default=http://127.0.0.1:"+peers)
	c.run("kube-apiserver", "--etcd-servers=http://127.0.0.1:"+etcd, "--secure-port="+port, "--bind-address=127.0.0.1", "--cert-dir="+b.in("certificates"),
		"--service-account-key-file="+b.in("signer.pem"), "--service-account-signing-key-file="+b.in("signer.pem"),
		"--service-account-issuer=https://kubernetes.default.svc", "--token-auth-file="+b.in("tokens.csv"), "--authorization-mode=Node,RBAC",
		"--service-cluster-ip-range=10.0.0.0/24", "--allow-privileged=true", "--disable-admission-plugins=ServiceAccount")
	config := c.kubeconfig("admin.kubeconfig", adminToken)
	c.admin = c.client(config)
	slowly(t, "the API server is ready", func() bool {
		_, err := c.admin.CoreV1().RESTClient().Get().AbsPath("/readyz").DoRaw(context.Background())
		return err == nil
	})
	c.run("kube-scheduler", "--kubeconfig="+config, "--leader-elect=false", "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
		"--secure-port="+freePort(t), "--bind-address=127.0.0.1", "--cert-dir="+b.in("certificates"))
	if _, err := os.Stat(filepath.Join(bin, "kube-controller-manager")); err == nil {
		c.controllers = true
		c.run("kube-controller-manager", "--kubeconfig="+config, "--leader-elect=false", "--secure-port="+freePort(t), "--bind-address=127.0.0.1",
			"--controllers=resourceclaim-controller,serviceaccount-controller,garbage-collector-controller", "--cert-dir="+b.in("certificates"))
	}
	return c
}

// slowly is eventually for programs that start for minutes on a busy machine.
func slowly(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Minute); !holds(); time.Sleep(time.Second) {
		if time.Now().After(end) {
			t.Fatalf("it did not come true that %s", what)
		}
	}
}

func (c *cluster) kubectl(arguments ...string) string {
	c.t.Helper()
	command := exec.Command(filepath.Join(c.bin, "kubectl"), append([]string{"--kubeconfig", c.bed.in("admin.kubeconfig")}, arguments...)...)
	out, err := command.CombinedOutput()
	if err != nil {
		c.t.Fatalf("kubectl %v: %v: %s", arguments, err, out)
	}
	return string(out)
}

func (c *cluster) makeNode(name string) {
	c.t.Helper()
	ctx := context.Background()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"terrace.dev/memory": "true"}}}
	made, err := c.admin.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	made.Spec.Taints = nil // that it is not ready
	if made, err = c.admin.CoreV1().Nodes().Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	room := corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("16Gi"), "pods": resource.MustParse("100")}
	made.Status = corev1.NodeStatus{Capacity: room, Allocatable: room,
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}}
	if _, err = c.admin.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// driverToken is the service account's, bound to a pod of the DaemonSet on that node, as the kubelet would mount it.
func (c *cluster) driverToken(node string) string {
	c.t.Helper()
	ctx := context.Background()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "driver-" + node, Namespace: "terrace-system"}, Spec: corev1.PodSpec{
		NodeName: node, ServiceAccountName: "terrace-dra", Containers: []corev1.Container{{Name: "driver", Image: "none"}}}}
	made, err := c.admin.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: made.Name, UID: made.UID}}}
	token, err := c.admin.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, "terrace-dra", request, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return token.Status.Token
}

// ask makes a claim of so much, and a pod that wants it.
func (c *cluster) ask(name, size string, parameters string) {
	c.t.Helper()
	ctx := context.Background()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{{Name: "mem", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "terrace.dev",
			Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(size)}}}}}}}}
	if parameters != "" {
		claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "terrace.dev", Parameters: runtime.RawExtension{Raw: []byte(parameters)}}}}}
	}
	if _, err := c.admin.ResourceV1().ResourceClaims("default").Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		ResourceClaims: []corev1.PodResourceClaim{{Name: "m", ResourceClaimName: &name}},
		Containers:     []corev1.Container{{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "m"}}}}}}}
	if _, err := c.admin.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) node(pod string) string {
	found, err := c.admin.CoreV1().Pods("default").Get(context.Background(), pod, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return found.Spec.NodeName
}

func (c *cluster) allocated(name string) *claim {
	c.t.Helper()
	var found *resourceapi.ResourceClaim
	slowly(c.t, "the scheduler allocates "+name, func() bool {
		var err error
		found, err = c.admin.ResourceV1().ResourceClaims("default").Get(context.Background(), name, metav1.GetOptions{})
		return err == nil && found.Status.Allocation != nil && c.node(name) != ""
	})
	result := found.Status.Allocation.Devices.Results[0]
	c.t.Logf("%s: %s/%s, share %s, consumes %v", name, result.Pool, result.Device, *result.ShareID, result.ConsumedCapacity)
	if result.Pool != nodeName+"/main" || c.node(name) != nodeName {
		c.t.Fatalf("allocated %+v on %s", result, c.node(name))
	}
	return &claim{namespace: "default", name: name, uid: string(found.UID), share: string(*result.ShareID)}
}

func TestRealCluster(t *testing.T) {
	if os.Getenv("TERRACE_KUBERNETES_BIN") == "" {
		t.Skip("TERRACE_KUBERNETES_BIN names no folder with kube-apiserver, kube-scheduler, kubectl and etcd; real_cluster.sh makes them")
	}
	b := newBedWithoutDriver(t)
	c := startCluster(t, b)
	t.Logf("API server %s", c.kubectl("version"))
	// What is shipped is what a real API server takes.
	c.kubectl("apply", "-f", "../manifests/terrace-dra.yaml")
	for _, example := range []string{"../examples/pod.yaml", "../examples/shared-claim.yaml"} {
		t.Log(c.kubectl("apply", "--dry-run=server", "-f", example))
	}
	c.makeNode(nodeName)
	c.makeNode("node-b") // without a terraced
	b.kubeconfig = c.kubeconfig("driver.kubeconfig", c.driverToken(nodeName))
	b.startDriver()
	k := startKubelet(t, b.in("registry"))
	slowly(t, "the API server has the pool", func() bool {
		found, err := c.admin.ResourceV1().ResourceSlices().List(context.Background(), metav1.ListOptions{})
		if err != nil || len(found.Items) != 1 || len(found.Items[0].Spec.Devices) != 1 {
			return false
		}
		value := found.Items[0].Spec.Devices[0].Capacity["memory"].Value
		return value.Value() == 128*mib
	})
	t.Log(c.kubectl("get", "resourceslices", "-o", "yaml"))

	// Rounded up to granules, several of one device, and no more than there is.
	c.ask("first", "5Mi", "")
	c.ask("second", "100Mi", `{"apiVersion": "terrace.dev/v1", "kind": "LeaseParameters", "mode": "shared_coherent", "path": "/memory"}`)
	first, second := c.allocated("first"), c.allocated("second")
	k.mustPrepare(t, first)
	device := k.mustPrepare(t, second)
	for _, one := range b.wantLeases(2) {
		if one.Bytes != 6*mib && one.Bytes != 100*mib {
			t.Errorf("lease %+v", one)
		}
	}
	if path := b.cdiOf(device).ContainerEdits.Mounts[0].ContainerPath; path != "/memory" {
		t.Error(path)
	}
	c.ask("third", "32Mi", "")
	slowly(t, "the third pod is told that there is no room", func() bool {
		return strings.Contains(c.kubectl("describe", "pod", "third"), "FailedScheduling")
	})
	if where := c.node("third"); where != "" {
		t.Fatalf("22 MiB are free, and 32 are scheduled to %s", where)
	}
	// The second ends: its kubelet unprepares, the claim is deallocated, the third is scheduled.
	if err := k.unprepare(second); err != nil {
		t.Fatal(err)
	}
	c.kubectl("delete", "pod", "second", "--force", "--grace-period=0")
	c.deallocate("second")
	third := c.allocated("third")
	k.mustPrepare(t, third)

	// Notices, with the rights of the manifest.
	b.terrace("lease", "revoke", fmt.Sprint(b.leaseOf(third).ID), "--grace", "1s", "--reason", "needed elsewhere")
	slowly(t, "the claim says that its lease was revoked", func() bool {
		return strings.Contains(c.kubectl("get", "resourceclaim", "third", "-o", "yaml"), "reason: LeaseRevoked") &&
			strings.Contains(c.kubectl("describe", "resourceclaim", "third"), "LeaseRevoked")
	})
	t.Log(c.kubectl("get", "resourceclaim", "third", "-o", "yaml"))
	c.checkOtherNodesSlices(b.kubeconfig)

	// A drained device is no capacity for the scheduler either; without a manager nobody is scheduled.
	b.stop(b.terraced, syscall.SIGKILL)
	slowly(t, "the device is tainted", func() bool {
		return strings.Contains(c.kubectl("get", "resourceslices", "-o", "yaml"), "key: terrace.dev/manager-away")
	})
	c.ask("fourth", "2Mi", "")
	slowly(t, "the fourth pod is told so", func() bool {
		return strings.Contains(c.kubectl("describe", "pod", "fourth"), "FailedScheduling")
	})
	b.startTerraced()
	c.allocated("fourth")
}

// deallocate does what the controller does with a claim whose pod is gone.
func (c *cluster) deallocate(name string) {
	c.t.Helper()
	if c.controllers {
		return
	}
	for _, field := range []string{"reservedFor", "allocation"} {
		c.kubectl("patch", "resourceclaim", name, "--subresource=status", "--type=json", "-p", `[{"op":"remove","path":"/status/`+field+`"}]`)
	}
}

// checkOtherNodesSlices: the admission policy holds the driver to its own node.
func (c *cluster) checkOtherNodesSlices(kubeconfig string) {
	c.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		c.t.Fatal(err)
	}
	driver := kubernetes.NewForConfigOrDie(rest.CopyConfig(config))
	other := "node-b"
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "forged"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "terrace.dev", NodeName: &other, Pool: resourceapi.ResourcePool{Name: "forged", ResourceSliceCount: 1}}}
	_, err = driver.ResourceV1().ResourceSlices().Create(context.Background(), slice, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "its own node only") {
		c.t.Fatalf("a slice of another node: %v", err)
	}
	c.t.Logf("refused: %v", err)
}
