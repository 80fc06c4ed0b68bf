// A page that is opened as a file may not start workers, so there the one that searches runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script src="${url}"></script>`;
      this.running = new Promise((resolve) => frame.addEventListener("load", () => {
        const inside = frame.contentWindow;
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        resolve(inside);
      }));
      document.documentElement.append(frame);
    }

    async postMessage(data) {
      (await this.running).dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
